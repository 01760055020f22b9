"""Splits that a file beside the manifest names: ``{"train": [core ids], "val": [...], "test": [...]}``."""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from grpo_pipeline.tasks.attention.splits import SPLITS

SHOWN = 3
"""Ids that a message gives as examples."""


def read_splits_file(path: Path, *, core_ids: Collection[str]) -> dict[str, str]:
    """Return core id -> train, val or test.

    Args:
        path: the JSON file; numbers among its ids are read as text.
        core_ids: those of the manifest, good rows and bad ones.

    Raises:
        ValueError: if the file is no such document, an id stands twice, or one is not in the manifest.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a JSON file of splits, got {error}; correct attention.data.splits_file") from error
    if not isinstance(found, dict) or set(found) != set(SPLITS) or not all(isinstance(ids, list) for ids in found.values()):
        kind = str(sorted(map(str, found))) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f'{path} must hold lists of core ids named "train", "val" and "test", got {kind}; correct it')
    pairs = [(str(core_id), name) for name in SPLITS for core_id in found[name]]
    split_of = dict(pairs)
    if len(split_of) < len(pairs):
        twice = sorted(core_id for core_id, count in Counter(core_id for core_id, _ in pairs).items() if count > 1)
        raise ValueError(f"{path} must name each core once, got {len(twice)} twice, such as {twice[:SHOWN]}; correct it")
    unknown = sorted(set(split_of) - set(core_ids))
    if unknown:
        raise ValueError(
            f"{path} must name cores of the manifest, got {len(unknown)} others, such as {unknown[:SHOWN]}; the manifest has "
            f"such as {sorted(core_ids)[:SHOWN]}"
        )
    return split_of
