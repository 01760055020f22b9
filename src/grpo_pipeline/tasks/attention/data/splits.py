"""Divide the cores into train, val and test by group, stratified, independent of the order of the rows."""

import logging
from collections.abc import Mapping

import pandas as pd

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.core_frames import core_rows
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.folds import SPLITS, deal_groups, group_strata

logger = logging.getLogger(__name__)

GROUPED = {"patient_id": "cluster"}

Splits = dict[str, list[str]]


def split_cores(
    checked: pd.DataFrame, params: SplitParams, *, classes: Classes | None = None
) -> Splits:
    """Divide the cores into splits, as sorted ids; a group (``patient_id``) is never divided.

    Splits that the manifest names are kept; one that it does not name is drawn from train, which is logged. Without names all are
    drawn. Groups are drawn stratified by "any core positive" and center. A class without a core in val or test is logged:
    nothing is known of it there.

    Raises:
        ValueError: if there are too few groups, a group is in two splits, or train lacks one of the ``classes``. Also if a split
            has a single label (in val and test unless ``single_class`` is ``allow``).
    """
    checked, is_named = core_rows(checked), "split" in checked
    groups = (
        with_all_splits(named_groups(checked), checked, params)
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
    """Refuse a training split that lacks a class; log other such splits. A finding in all cores or in none is a lack."""
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
    """Map group -> split from the manifest.

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


def with_all_splits(
    groups: Mapping[str, str], checked: pd.DataFrame, params: SplitParams
) -> dict[str, str]:
    """Draw the splits that no group is in from those of train, where it has as many; logs what was drawn.

    Args:
        groups: group -> split, as the manifest names it.
        checked: the cores.
        params: the shares, of which those of the other splits do not count.
    """
    wanted = [name for name in SPLITS if name == "train" or name not in groups.values()]
    rows = checked[checked["patient_id"].map(groups) == "train"]
    if len(wanted) == 1 or rows["patient_id"].nunique() < len(wanted):
        return dict(groups)
    shares = [getattr(params.fractions, name) for name in wanted]
    shares = [share / sum(shares) for share in shares]
    rng = numpy_generator(params.seed, Stream.SPLIT)
    dealt = deal_groups(group_strata(rows.rename(columns=GROUPED)), shares, rng=rng)
    drawn = {group: wanted[part] for group, part in dealt.items()}
    for name in wanted[1:]:
        count = list(drawn.values()).count(name)
        logger.warning(
            "no row is named %s: %d of %d groups of train were drawn for it",
            name,
            count,
            len(drawn),
        )
    return {**groups, **drawn}


def draw_groups(strata: Mapping[str, tuple[int, str]], params: SplitParams) -> dict[str, str]:
    """Draw the split of each group; every stratum gets its shares (``deal_groups``).

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
    """Refuse an empty split, and a split with a single class if that is not allowed."""
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
