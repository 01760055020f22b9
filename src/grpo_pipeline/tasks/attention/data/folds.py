"""Divide the cores into folds of cross-validation by group, stratified, independent of the order of the rows.

Groups are dealt as the splits are (``splits.deal_groups``), not by scikit-learn's StratifiedGroupKFold: it balances cores and
lets the folds differ by several patients, while patients are what is resampled (docs/decisions/0017).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.data.splits import SPLITS, Splits, deal_groups, group_strata

# How the cores are divided for cross-validation.


class FoldParams(BaseModel):
    """The folds of ``attention.cross_validation`` (docs/cross_validation.md).

    Attributes:
        scheme: ``kfold``: the test split of ``attention.splits`` is held out, the rest is divided into folds; ``nested``: all
            cores are divided, and each training part once more, to choose settings; ``leave_one_center_out``: a fold per center.
        folds: number of folds of ``kfold`` and ``nested``.
        inner_folds: number of folds inside each training part of ``nested``.
        val_share: share of a training part's patients that is not trained on: for watching and early decisions.
        seed: fixes which patient goes where.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scheme: Literal["kfold", "nested", "leave_one_center_out"]
    folds: Annotated[int, Field(ge=2)]
    inner_folds: Annotated[int, Field(ge=2)]
    val_share: Annotated[float, Field(gt=0, le=0.5)]
    seed: Annotated[int, Field(ge=0)]


Part = Literal["train", "val", "test"]
# One stream of random numbers for each thing that is drawn.
OUTER, OUTER_VAL, INNER, INNER_VAL = range(4)
REMEDY = "use fewer folds or another attention.cross_validation.seed, or add data"


@dataclass(frozen=True)
class CoreFold:
    """The core ids of one fold, sorted; no patient is in two of ``train``, ``val`` and ``test``.

    Attributes:
        name: ``fold0``, ``fold1``, ... or the center that is tested.
        train: what is learned from.
        val: for watching and early decisions.
        test: what the fold's model predicts, and nothing else uses.
        left_out: cores of patients of the tested center that were taken in another one.
        inner: folds inside train + val, to choose settings (``nested`` only).
    """

    name: str
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    inner: tuple["CoreFold", ...] = ()

    def parts(self) -> dict[str, Part]:
        """Return core id -> part; what is left out is not in it."""
        named: dict[Part, tuple[str, ...]] = {"train": self.train, "val": self.val, "test": self.test}
        return {core: part for part, cores in named.items() for core in cores}


@dataclass(frozen=True)
class FoldPlan:
    """All folds of one scheme; every core that is not held out is in the test part of exactly one.

    Attributes:
        scheme: as in the parameters.
        folds: the folds in their order.
        held_out: cores that no fold holds (``kfold``); every fold's model predicts them at the end.
    """

    scheme: str
    folds: tuple[CoreFold, ...]
    held_out: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


def read_plan(document: Mapping[str, Any]) -> FoldPlan:
    """Return the plan that ``FoldPlan.document`` wrote."""
    folds = tuple(_read_fold(fold) for fold in document["folds"])
    return FoldPlan(scheme=document["scheme"], folds=folds, held_out=tuple(document["held_out"]))


def plan_folds(checked: pd.DataFrame, splits: Splits, params: FoldParams) -> FoldPlan:
    """Divide the cores as the scheme says.

    Args:
        checked: one row per core with core_id, patient_id, center and label; the order does not matter.
        splits: the splits of the data; ``kfold`` holds their test split out, the other schemes do not look at them.
        params: the scheme.

    Raises:
        ValueError: if there are fewer patients than folds, fewer than two centers, a center is unknown, or a training part
            lacks a class.
    """
    table = checked.reset_index(drop=True)
    if params.scheme == "leave_one_center_out":
        return FoldPlan(params.scheme, leave_one_center_out(table, params))
    held_out = tuple(sorted(splits["test"])) if params.scheme == "kfold" else ()
    rest = table[~table["core_id"].isin(held_out)]
    return FoldPlan(params.scheme, divide(rest, params), held_out)


def divide(table: pd.DataFrame, params: FoldParams) -> tuple[CoreFold, ...]:
    """Return k folds of whole patients, each with inner ones where the scheme is ``nested``."""
    folds = []
    for number, is_test in enumerate(deal_tests(table, params.folds, stream=(OUTER,), params=params, what="folds")):
        fold = carve(table, is_test, name=f"fold{number}", stream=(OUTER_VAL, number), params=params)
        inner = divide_again(table[~is_test], number, params) if params.scheme == "nested" else ()
        folds.append(CoreFold(fold.name, fold.train, fold.val, fold.test, inner=inner))
    return tuple(folds)


def divide_again(table: pd.DataFrame, outer: int, params: FoldParams) -> tuple[CoreFold, ...]:
    """Return the inner folds of one training part."""
    tests = deal_tests(table, params.inner_folds, stream=(INNER, outer), params=params, what="inner_folds")
    return tuple(
        carve(table, is_test, name=f"fold{outer}.inner{number}", stream=(INNER_VAL, outer, number), params=params)
        for number, is_test in enumerate(tests)
    )


def leave_one_center_out(table: pd.DataFrame, params: FoldParams) -> tuple[CoreFold, ...]:
    """Return one fold per center, in the order of their names.

    A patient with cores in several centers is tested in each of them, core by core, and trained on only where none of its
    centers is tested.

    Raises:
        ValueError: if a center is unknown or there is only one.
    """
    check_centers(table)
    folds = []
    for number, center in enumerate(sorted(table["center"].unique())):
        is_test = table["center"] == center
        is_known = table["patient_id"].isin(table.loc[is_test, "patient_id"])
        left_out = is_known & ~is_test
        fold = carve(table[~left_out], is_test[~left_out], name=str(center), stream=(OUTER_VAL, number), params=params)
        folds.append(CoreFold(fold.name, fold.train, fold.val, fold.test, left_out=core_ids(table[left_out])))
    return tuple(folds)


def check_centers(table: pd.DataFrame) -> None:
    """Raise ValueError unless every core has a center and there are at least two."""
    unknown = table["center"].isna() | (table["center"].astype(str).str.strip() == "")
    if unknown.any():
        core = table.loc[unknown, "core_id"].iloc[0]
        raise ValueError(f"center must be known for leave_one_center_out, got none for core {core!r}; fill it in, or use kfold")
    centers = sorted(table["center"].unique())
    if len(centers) < 2:
        raise ValueError(
            f"leave_one_center_out must have at least 2 centers (attention.data.columns.center), got {centers}; use kfold"
        )


def deal_tests(table: pd.DataFrame, folds: int, *, stream: tuple[int, ...], params: FoldParams, what: str) -> list[pd.Series]:
    """Return for each fold which rows it tests, bool [n]; every patient is tested once.

    Raises:
        ValueError: if there are fewer patients than folds.
    """
    strata = group_strata(table)
    if len(strata) < folds:
        raise ValueError(
            f"attention.cross_validation.{what} must be at most the number of patients to divide, got {folds} for "
            f"{len(strata)} patients; use fewer, or add patients"
        )
    dealt = deal_groups(strata, [1 / folds] * folds, rng=numpy_generator(params.seed, Stream.FOLDS, *stream))
    fold_of_row = table["patient_id"].map(dealt)
    return [fold_of_row == fold for fold in range(folds)]


def carve(table: pd.DataFrame, is_test: pd.Series, *, name: str, stream: tuple[int, ...], params: FoldParams) -> CoreFold:
    """Return the fold that tests these rows and sets patients of the others apart for validation.

    Raises:
        ValueError: if the training part lacks a class or nothing is left for validation.
    """
    rest = table[~is_test]
    shares = [1 - params.val_share, params.val_share]
    dealt = deal_groups(group_strata(rest), shares, rng=numpy_generator(params.seed, Stream.FOLDS, *stream))
    is_val = rest["patient_id"].map(dealt) == 1
    check_training(rest.loc[~is_val, "label"], name=name)
    if not is_val.any():
        patients = rest["patient_id"].nunique()
        raise ValueError(
            f"the validation part of {name!r} must hold cores, got none of {patients} patients; "
            f"raise attention.cross_validation.val_share, or {REMEDY}"
        )
    return CoreFold(name, core_ids(rest[~is_val]), core_ids(rest[is_val]), core_ids(table[is_test]))


def check_training(labels: pd.Series, *, name: str) -> None:
    """Raise ValueError unless a training part holds both classes."""
    if labels.nunique() < 2:
        got = f"{len(labels)} cores that all have label {int(labels.iloc[0])}" if len(labels) else "no cores"
        raise ValueError(f"the training part of {name!r} must hold cores of both classes, got {got}; {REMEDY}")


def core_ids(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the core ids of these rows, sorted."""
    return tuple(sorted(rows["core_id"].astype(str)))


def _read_fold(document: Mapping[str, Any]) -> CoreFold:
    cores = {name: tuple(document[name]) for name in (*SPLITS, "left_out")}
    return CoreFold(document["name"], inner=tuple(_read_fold(fold) for fold in document["inner"]), **cores)
