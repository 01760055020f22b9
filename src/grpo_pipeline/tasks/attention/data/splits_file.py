"""Read the splits that a file beside the manifest names: ``{"train": [core ids], "val": [...], "test": [...]}``."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.row_checks import read_row
from grpo_pipeline.tasks.attention.data.row_paths import file_stem
from grpo_pipeline.tasks.attention.data.rows import Row, RowError
from grpo_pipeline.tasks.folds import SPLITS
from grpo_pipeline.tasks.text_lines import composed

SHOWN = 3
"""Ids that a message gives as examples."""


def read_splits_file(path: Path, *, core_ids: Collection[str]) -> dict[str, str]:
    """Read the file: core id -> train, val or test.

    Args:
        path: the JSON file; numbers among its ids are read as text.
        core_ids: those of the manifest, good rows and bad ones.

    Raises:
        ValueError: if the file is no such document, an id stands twice, or one is not in the manifest.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} must be a JSON file of splits, got {error}; correct attention.data.splits_file"
        ) from error
    if (
        not isinstance(found, dict)
        or set(found) != set(SPLITS)
        or not all(isinstance(ids, list) for ids in found.values())
    ):
        kind = str(sorted(map(str, found))) if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            f'{path} must hold lists of core ids named "train", "val" and "test", got {kind}; correct it'
        )
    pairs = [(composed(str(core_id)), name) for name in SPLITS for core_id in found[name]]
    split_of = dict(pairs)
    if len(split_of) < len(pairs):
        twice = sorted(
            core_id
            for core_id, count in Counter(core_id for core_id, _ in pairs).items()
            if count > 1
        )
        raise ValueError(
            f"{path} must name each core once, got {len(twice)} twice, such as {twice[:SHOWN]}; correct it"
        )
    unknown = sorted(set(split_of) - set(core_ids))
    if unknown:
        raise ValueError(
            f"{path} must name cores of the manifest, got {len(unknown)} others, such as {unknown[:SHOWN]}; the manifest has "
            f"such as {sorted(core_ids)[:SHOWN]}"
        )
    return split_of


def named_splits(raw: ImageFolder, params: DataParams) -> dict[str, str] | None:
    """Read core id -> split from ``splits_file``; None without such a file."""
    if params.splits_file is None:
        return None
    columns = params.columns
    # The core id of each row, not checked yet.
    ids = (
        raw.manifest[columns.core_id]
        if columns.core_id
        else map(file_stem, raw.manifest[columns.image])
    )
    return read_splits_file(
        resolve_below(raw.root, params.splits_file), core_ids=set(map(composed, ids))
    )


def read_split_row(
    cells: Mapping[str, str], *, params: DataParams, split_of: Mapping[str, str] | None
) -> Row:
    """Read a row with its split from ``split_of`` if a file names the splits; a core that the file leaves out is refused."""
    row: Row = read_row(cells, params)
    if split_of is None:
        return row
    core_id, file = composed(row["core_id"]), str(params.splits_file)
    if core_id not in split_of:
        raise RowError(
            f"core {core_id!r} must be in a split of {file!r}, got none; add it there or drop the row",
            file=file,
        )
    return row | {"split": split_of[core_id]}
