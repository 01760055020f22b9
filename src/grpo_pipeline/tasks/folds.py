"""Divide the examples of any task into folds of cross-validation by cluster, stratified, independent of the order of the rows.

Clusters are dealt out in turns (``deal_groups``), not by scikit-learn's StratifiedGroupKFold: it balances examples and lets
the folds differ by several clusters, while clusters are what is resampled (docs/decisions/0017).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.params import FoldParams

SPLITS = ("train", "val", "test")
COLUMNS = ("example", "cluster", "label", "center")
Part = Literal["train", "val", "test"]
# One stream of random numbers for each thing that is drawn.
OUTER, OUTER_VAL, INNER, INNER_VAL = range(4)


@dataclass(frozen=True)
class Names:
    """How errors call what is divided.

    Attributes:
        task: name of the task.
        noun: an example.
        clusters: a cluster.
    """

    task: str
    noun: str
    clusters: str

    @property
    def path(self) -> str:
        """Where the parameters stand."""
        return f"{self.task}.cross_validation"

    @property
    def remedy(self) -> str:
        """Advice for a part that lacks something."""
        return f"use fewer folds or another {self.path}.seed, or add data"


@dataclass(frozen=True)
class ExampleFold:
    """The example ids of one fold, sorted; no cluster is in two of ``train``, ``val`` and ``test``.

    Attributes:
        name: ``fold0``, ``fold1``, ... or the center that is tested.
        train: what is learned from.
        val: for watching and early decisions.
        test: what the fold's model predicts, and nothing else uses.
        left_out: examples of clusters of the tested center that were taken in another one.
        inner: folds inside train + val, to choose settings (``nested`` only).
    """

    name: str
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    inner: tuple["ExampleFold", ...] = ()

    def parts(self) -> dict[str, Part]:
        """Return example id -> part; what is left out is not in it."""
        named: dict[Part, tuple[str, ...]] = {
            "train": self.train,
            "val": self.val,
            "test": self.test,
        }
        return {example: part for part, examples in named.items() for example in examples}


@dataclass(frozen=True)
class FoldPlan:
    """All folds of one scheme; every example that is not held out is in the test part of exactly one.

    Attributes:
        scheme: as in the parameters.
        folds: the folds in their order.
        held_out: examples that no fold holds (``kfold``); every fold's model predicts them at the end.
    """

    scheme: str
    folds: tuple[ExampleFold, ...]
    held_out: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)


def read_plan(document: Mapping[str, Any]) -> FoldPlan:
    """Return the plan that ``FoldPlan.document`` wrote."""
    folds = tuple(_read_fold(fold) for fold in document["folds"])
    return FoldPlan(scheme=document["scheme"], folds=folds, held_out=tuple(document["held_out"]))


def plan_folds(
    table: pd.DataFrame, held_out: Sequence[str], params: FoldParams, names: Names
) -> FoldPlan:
    """Divide the examples as the scheme says.

    Args:
        table: one row per example with the columns ``COLUMNS``; the order does not matter. ``label`` is 0 or 1, and the same
            everywhere where there are no classes; ``center`` is "" where there are none.
        held_out: the test split of the data, which ``kfold`` holds out; the other schemes do not look at it.
        params: the scheme.
        names: for errors.

    Raises:
        ValueError: if there are fewer clusters than folds, fewer than two centers, a center is unknown, or a training part
            lacks a class.
    """
    table = table.reset_index(drop=True)
    if params.scheme == "leave_one_center_out":
        return FoldPlan(params.scheme, leave_one_center_out(table, params, names))
    apart = tuple(sorted(held_out)) if params.scheme == "kfold" else ()
    rest = table[~table["example"].isin(apart)]
    return FoldPlan(params.scheme, divide(rest, params, names), apart)


def divide(table: pd.DataFrame, params: FoldParams, names: Names) -> tuple[ExampleFold, ...]:
    """Return k folds of whole patients, each with inner ones where the scheme is ``nested``."""
    folds = []
    for number, is_test in enumerate(
        deal_tests(table, params.folds, stream=(OUTER,), params=params, what="folds", names=names)
    ):
        fold = carve(
            table,
            is_test,
            name=f"fold{number}",
            stream=(OUTER_VAL, number),
            params=params,
            names=names,
        )
        inner = (
            divide_again(table[~is_test], number, params, names)
            if params.scheme == "nested"
            else ()
        )
        folds.append(ExampleFold(fold.name, fold.train, fold.val, fold.test, inner=inner))
    return tuple(folds)


def divide_again(
    table: pd.DataFrame, outer: int, params: FoldParams, names: Names
) -> tuple[ExampleFold, ...]:
    """Return the inner folds of one training part."""
    tests = deal_tests(
        table,
        params.inner_folds,
        stream=(INNER, outer),
        params=params,
        what="inner_folds",
        names=names,
    )
    return tuple(
        carve(
            table,
            is_test,
            name=f"fold{outer}.inner{number}",
            stream=(INNER_VAL, outer, number),
            params=params,
            names=names,
        )
        for number, is_test in enumerate(tests)
    )


def leave_one_center_out(
    table: pd.DataFrame, params: FoldParams, names: Names
) -> tuple[ExampleFold, ...]:
    """Return one fold per center, in the order of their names.

    A cluster with examples in several centers is tested in each of them, example by example, and trained on only where none
    of its centers is tested.

    Raises:
        ValueError: if a center is unknown or there is only one.
    """
    check_centers(table, names)
    folds = []
    for number, center in enumerate(sorted(table["center"].unique())):
        is_test = table["center"] == center
        is_known = table["cluster"].isin(table.loc[is_test, "cluster"])
        left_out = is_known & ~is_test
        rest, stream = table[~left_out], (OUTER_VAL, number)
        fold = carve(
            rest, is_test[~left_out], name=str(center), stream=stream, params=params, names=names
        )
        folds.append(
            ExampleFold(
                fold.name, fold.train, fold.val, fold.test, left_out=example_ids(table[left_out])
            )
        )
    return tuple(folds)


def check_centers(table: pd.DataFrame, names: Names) -> None:
    """Raise ValueError unless every example has a center and there are at least two."""
    unknown = table["center"].isna() | (table["center"].astype(str).str.strip() == "")
    if unknown.any():
        example = table.loc[unknown, "example"].iloc[0]
        raise ValueError(
            f"center must be known for leave_one_center_out, got none for {names.noun} {example!r}; fill it in, or use kfold"
        )
    centers = sorted(table["center"].unique())
    if len(centers) < 2:
        raise ValueError(
            f"leave_one_center_out must have at least 2 centers ({names.task}.data.columns.center), got {centers}; use kfold"
        )


def deal_tests(
    table: pd.DataFrame,
    folds: int,
    *,
    stream: tuple[int, ...],
    params: FoldParams,
    what: str,
    names: Names,
) -> list[pd.Series]:
    """Return for each fold which rows it tests, bool [n]; every cluster is tested once.

    Raises:
        ValueError: if there are fewer clusters than folds.
    """
    strata = group_strata(table)
    if len(strata) < folds:
        raise ValueError(
            f"{names.path}.{what} must be at most the number of {names.clusters}s to divide, got {folds} for "
            f"{len(strata)} {names.clusters}s; use fewer, or add {names.clusters}s"
        )
    dealt = deal_groups(
        strata, [1 / folds] * folds, rng=numpy_generator(params.seed, Stream.FOLDS, *stream)
    )
    fold_of_row = table["cluster"].map(dealt)
    return [fold_of_row == fold for fold in range(folds)]


def carve(
    table: pd.DataFrame,
    is_test: pd.Series,
    *,
    name: str,
    stream: tuple[int, ...],
    params: FoldParams,
    names: Names,
) -> ExampleFold:
    """Return the fold that tests these rows and sets clusters of the others apart for validation.

    Raises:
        ValueError: if the training part lacks a class or nothing is left for validation.
    """
    rest = table[~is_test]
    shares = [1 - params.val_share, params.val_share]
    dealt = deal_groups(
        group_strata(rest), shares, rng=numpy_generator(params.seed, Stream.FOLDS, *stream)
    )
    is_val = rest["cluster"].map(dealt) == 1
    if table["label"].nunique() > 1:
        check_training(rest.loc[~is_val, "label"], name=name, names=names)
    if not is_val.any():
        clusters = rest["cluster"].nunique()
        raise ValueError(
            f"the validation part of {name!r} must hold {names.noun}s, got none of {clusters} {names.clusters}s; "
            f"raise {names.path}.val_share, or {names.remedy}"
        )
    return ExampleFold(
        name, example_ids(rest[~is_val]), example_ids(rest[is_val]), example_ids(table[is_test])
    )


def check_training(labels: pd.Series, *, name: str, names: Names) -> None:
    """Raise ValueError unless a training part holds both classes."""
    if labels.nunique() < 2:
        some = (
            f"{len(labels)} {names.noun}s that all have label {int(labels.iloc[0])}"
            if len(labels)
            else ""
        )
        got = some or f"no {names.noun}s"
        raise ValueError(
            f"the training part of {name!r} must hold {names.noun}s of both classes, got {got}; {names.remedy}"
        )


def example_ids(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the example ids of these rows, sorted."""
    return tuple(sorted(rows["example"].astype(str)))


def group_strata(table: pd.DataFrame) -> dict[str, tuple[int, str]]:
    """Return cluster -> (1 if any of its examples is positive, its most frequent center; the first name where several are)."""
    positive = table.groupby("cluster")["label"].max()
    counts = table.groupby(["cluster", "center"]).size().rename("examples").reset_index()
    ranked = counts.sort_values(["cluster", "examples", "center"], ascending=[True, False, True])
    center = ranked.drop_duplicates("cluster").set_index("cluster")["center"]
    return {str(group): (int(positive[group]), str(center[group])) for group in positive.index}


def deal_groups(
    strata: Mapping[str, tuple[int, str]], shares: Sequence[float], *, rng: np.random.Generator
) -> dict[str, int]:
    """Return group -> number of its part: groups in random order within each stratum, dealt out by the shares.

    The i-th group goes to the part that is furthest below its share of i groups, counted through the strata, so that the
    total is within one group of the wanted shares as well. With equal shares the parts take turns: any two differ by at
    most one group, in total and in every stratum.

    Args:
        strata: group -> stratum; the order of the mapping does not matter.
        shares: wanted share of the groups of each part; they add up to 1.
        rng: the order within a stratum.
    """
    wanted = np.array(shares)
    counts, parts = np.zeros(len(wanted)), {}
    for stratum in sorted(set(strata.values())):
        members = sorted(group for group, key in strata.items() if key == stratum)
        for group in rng.permutation(members):
            lag = wanted * (counts.sum() + 1) - counts
            chosen = int(np.argmax(lag))
            counts[chosen] += 1
            parts[str(group)] = chosen
    return parts


def _read_fold(document: Mapping[str, Any]) -> ExampleFold:
    examples = {name: tuple(document[name]) for name in (*SPLITS, "left_out")}
    return ExampleFold(
        document["name"], inner=tuple(_read_fold(fold) for fold in document["inner"]), **examples
    )
