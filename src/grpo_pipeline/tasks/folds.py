"""Divide the examples of any task into folds of cross-validation: by cluster, stratified, independent of the order of the rows.

Clusters are dealt out in turns (``deal_groups``), so that folds have equal numbers of clusters, the units of resampling.
scikit-learn's StratifiedGroupKFold balances examples instead (docs/decisions/0017).
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
# A stream of random numbers for each kind of draw.
OUTER, OUTER_VAL, INNER, INNER_VAL = range(4)


@dataclass(frozen=True)
class Names:
    """The words for examples and clusters in errors.

    Attributes:
        task: name of the task.
        noun: word for an example.
        clusters: word for a cluster.
    """

    task: str
    noun: str
    clusters: str

    @property
    def path(self) -> str:
        """The path of the parameters."""
        return f"{self.task}.cross_validation"

    @property
    def remedy(self) -> str:
        """Advice for a part that lacks something."""
        return f"use fewer folds or another {self.path}.seed, or add data"


@dataclass(frozen=True)
class ExampleFold:
    """The sorted example ids of a fold; no cluster is in two of ``train``, ``val`` and ``test``.

    Attributes:
        name: ``fold0``, ``fold1``, ... or the center that is tested.
        train: examples to learn from.
        val: examples for watching and early decisions.
        test: examples that the fold's model predicts, for no other use.
        left_out: examples of the tested center's clusters that come from other centers.
        inner: folds inside train + val, to choose settings (``nested`` only).
    """

    name: str
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    inner: tuple["ExampleFold", ...] = ()

    def parts(self) -> dict[str, Part]:
        """Map example id -> part; examples that are left out have no entry."""
        named: dict[Part, tuple[str, ...]] = {
            "train": self.train,
            "val": self.val,
            "test": self.test,
        }
        return {example: part for part, examples in named.items() for example in examples}


@dataclass(frozen=True)
class FoldPlan:
    """All folds of a scheme; every example that is not held out is in the test part of exactly one fold.

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
        table: a row per example with the columns ``COLUMNS``, in any order. ``label`` is 0 or 1, and constant without classes;
            ``center`` is "" without centers.
        held_out: the test split of the data, which ``kfold`` holds out; the other schemes do not look at it.
        params: the scheme.
        names: words for errors.

    Raises:
        ValueError: if there are fewer clusters than folds or fewer than two centers, a center is unknown, or a training part
            lacks a class.
    """
    table = table.reset_index(drop=True)
    if params.scheme == "leave_one_center_out":
        return FoldPlan(params.scheme, leave_one_center_out(table, params, names))
    apart = tuple(sorted(held_out)) if params.scheme == "kfold" else ()
    rest = table[~table["example"].isin(apart)]
    return FoldPlan(params.scheme, divide(rest, params, names), apart)


def divide(table: pd.DataFrame, params: FoldParams, names: Names) -> tuple[ExampleFold, ...]:
    """Build k folds of whole clusters, each with inner folds if the scheme is ``nested``."""
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
    """Build the inner folds of a training part."""
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
    """Build a fold per center, in the order of their names.

    A cluster with examples in several centers is tested in each of them, example by example. It is trained on only in folds that
    test none of its centers.

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
    """Choose the rows that each fold tests, bool [n]; every cluster is tested once.

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
    """Build the fold that tests these rows, with clusters of the other rows set apart for validation.

    Raises:
        ValueError: if the training part lacks a class, or no cluster is left for validation.
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
    """List the example ids of these rows, sorted."""
    return tuple(sorted(rows["example"].astype(str)))


def group_strata(table: pd.DataFrame) -> dict[str, tuple[int, str]]:
    """Map cluster -> (1 if any of its examples is positive, its most frequent center; the first name of equal ones)."""
    positive = table.groupby("cluster")["label"].max()
    counts = table.groupby(["cluster", "center"]).size().rename("examples").reset_index()
    ranked = counts.sort_values(["cluster", "examples", "center"], ascending=[True, False, True])
    center = ranked.drop_duplicates("cluster").set_index("cluster")["center"]
    return {str(group): (int(positive[group]), str(center[group])) for group in positive.index}


def deal_groups(
    strata: Mapping[str, tuple[int, str]], shares: Sequence[float], *, rng: np.random.Generator
) -> dict[str, int]:
    """Deal groups into parts, in random order within each stratum: group -> number of its part.

    The i-th group goes to the part that is furthest below its share of i groups. i counts through the strata, so that the totals,
    too, are within one group of the wanted shares. With equal shares the parts take turns: any two differ by at most one group,
    in total and in every stratum.

    Args:
        strata: group -> stratum; the order of the mapping does not matter.
        shares: wanted share of the groups of each part; they add up to 1.
        rng: decides the order within a stratum.
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
