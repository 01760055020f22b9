"""Divide the cores into train, val and test by group, stratified, independent of the order of the rows."""

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.data.cases import core_rows
from grpo_pipeline.tasks.attention.data.file_checks import Row, RowError, file_stem
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, resolve_below
from grpo_pipeline.tasks.attention.data.params import Classes, DataParams, SplitParams
from grpo_pipeline.tasks.attention.data.row_checks import read_row
from grpo_pipeline.tasks.folds import SPLITS, deal_groups, group_strata
from grpo_pipeline.tasks.text_lines import composed

logger = logging.getLogger(__name__)
GROUPED = {"patient_id": "cluster"}
Splits = dict[str, list[str]]


def split_cores(
    checked: pd.DataFrame, params: SplitParams, *, classes: Classes | None = None
) -> Splits:
    """Return the core ids of each split, sorted; a group (``patient_id``) is never divided.

    Where the manifest names the splits they are taken as they are; otherwise groups are drawn, stratified by
    "any core positive" and center. A class that val or test has no core of is warned of: nothing is known of it there.

    Raises:
        ValueError: if there are too few groups, a group is in two splits, a split has a single label (in val and test
            unless ``single_class`` is ``allow``), or train lacks one of the ``classes``.
    """
    checked, is_named = core_rows(checked), "split" in checked
    groups = (
        named_groups(checked)
        if is_named
        else draw_groups(group_strata(checked.rename(columns=GROUPED)), params)
    )
    remedy = (
        "move groups in the manifest's split column"
        if is_named
        else "change attention.split.fractions or seed"
    )
    split_of_core = checked["patient_id"].map(groups)
    splits = {name: sorted(checked.loc[split_of_core == name, "core_id"]) for name in SPLITS}
    for name in SPLITS:
        check_split(
            checked.loc[split_of_core == name, "label"],
            name=name,
            params=params,
            remedy=f"{remedy}, or add data",
        )
        if classes is not None:
            of_split = checked.loc[split_of_core == name, classes.column]
            check_classes(of_split, checked, classes, name=name, remedy=f"{remedy}, or add data")
    return splits


def check_classes(
    found: pd.Series, checked: pd.DataFrame, classes: Classes, *, name: str, remedy: str
) -> None:
    """Refuse a training split that lacks a class; warn of another split that does. Of findings all cores or none is a lack."""
    for number, one in enumerate(classes.names):
        has_it = classes.is_of(found, number)
        if has_it.any() and not (classes.several and has_it.all()):
            continue
        is_of = classes.is_of(checked[classes.column], number)
        patients = checked.loc[is_of, "patient_id"].nunique()
        rule = "of every class, got none of"
        if classes.several:
            rule = (
                f"with and without each finding, got {'all with' if has_it.any() else 'none with'}"
            )
        told = (
            f"split {name!r} must hold cores {rule} {one!r}, which {patients} patients of all have"
        )
        if name == "train":
            raise ValueError(f"{told}; {remedy}")
        logger.warning("%s: its metrics there are undefined; %s", told, remedy)


def named_groups(checked: pd.DataFrame) -> dict[str, str]:
    """Return group -> split as the manifest says.

    Raises:
        ValueError: if a group is in two splits.
    """
    groups: dict[str, str] = {}
    for group, split in zip(checked["patient_id"], checked["split"], strict=True):
        if groups.setdefault(str(group), str(split)) != split:
            both = sorted({groups[str(group)], str(split)})
            raise ValueError(
                f"patient {group!r} must be in one split, got {both}; move all its rows to one of them"
            )
    return groups


def draw_groups(strata: Mapping[str, tuple[int, str]], params: SplitParams) -> dict[str, str]:
    """Return group -> split, every stratum getting its shares (``deal_groups``).

    Raises:
        ValueError: if there are fewer groups than splits.
    """
    if len(strata) < len(SPLITS):
        raise ValueError(
            f"the data must hold at least {len(SPLITS)} groups (attention.data.columns.patient_id), got {len(strata)}; "
            "a group is never divided, so map a column with more values"
        )
    shares = [getattr(params.fractions, name) for name in SPLITS]
    dealt = deal_groups(strata, shares, rng=numpy_generator(params.seed, Stream.SPLIT))
    return {group: SPLITS[part] for group, part in dealt.items()}


def check_split(labels: pd.Series, *, name: str, params: SplitParams, remedy: str) -> None:
    """Refuse an empty split, and one with a single class where that is not allowed."""
    if labels.empty:
        raise ValueError(f"split {name!r} must hold cores, got none; {remedy}")
    if labels.nunique() == 1 and (name == "train" or params.single_class == "error"):
        allow = (
            ""
            if name == "train"
            else ", or set attention.split.single_class: allow (its AUROC is then undefined)"
        )
        got = f"{len(labels)} cores that all have label {int(labels.iloc[0])}"
        raise ValueError(
            f"split {name!r} must hold cores of both classes, got {got}; {remedy}{allow}"
        )


# Splits that a file beside the manifest names: ``{"train": [core ids], "val": [...], "test": [...]}``.

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
    """Return core id -> split as ``splits_file`` says, None where there is none."""
    if params.splits_file is None:
        return None
    columns = params.columns
    # The core id of each row, not judged yet.
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
    """Read a row, its split from ``split_of`` where a file names the splits; a core that the file leaves out is refused."""
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
