"""Compute the metrics of the molecule task, each from the rows of an arm and a rule (docs/molecules/rewards.md).

The module needs no RDKit: it reads columns that ``molecule_table`` has written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from pydantic import Field

from grpo_pipeline.statistics import linear_resampling, weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.linear_resampling import linear_resamples
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import (
    NOT_NEGATIVE,
    SHARE,
    Bar,
    Direction,
    Metric,
    MetricSuite,
    Unit,
)
from grpo_pipeline.statistics.wasserstein import wasserstein_1
from grpo_pipeline.tasks.molecules.evaluation.summary import summary
from grpo_pipeline.tasks.params import Section

TRAINING = "training"
RULES = ("policy", "start")
FLAGS = (
    "is_valid",
    "sanitises",
    "is_connected",
    "fragment_is_valid",
    "n_atoms",
    "stable_atoms",
    "is_stable",
)
REQUIRED = (
    "sample_id",
    "prompt_id",
    "rule",
    "smiles",
    *FLAGS,
    "is_known",
    "qed",
    "logp",
    "sa",
    "reward",
)
NUMBERS = ("n_atoms", "qed", "logp", "sa")
COUNTS = ("atoms_", "bonds_", "valency_")
REWARD = "reward_"
NO_ROWS = "needs at least one molecule"
NO_VALID = "needs at least one valid molecule"
TO_COMPARE = f"rows of the rule {TRAINING} to compare with"


class MetricOptions(Section):
    """The constants that the definitions leave open."""

    min_uniqueness: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="share of different molecules below which a summary warns",
    )


def all_rows(rows: pd.DataFrame) -> np.ndarray:
    """Select every row: True, [n]."""
    return np.ones(len(rows), bool)


def is_valid(rows: pd.DataFrame) -> np.ndarray:
    """Select the rows with a valid molecule, bool [n]."""
    return np.asarray(column(rows, "is_valid") == 1)


def share_of_different(
    rows: pd.DataFrame, weights: np.ndarray, *, must_be_new: bool, of_different: bool
) -> np.ndarray:
    """Compute a share that counts equal molecules once, in resamples of rows linearised by the jackknife, [B].

        |{different valid molecules (that are not known)}| / |{rows}|, or / |{different valid molecules}|

    Args:
        rows: [n] of a rule.
        weights: [B, n].
        must_be_new: count only molecules that are not in the training split.
        of_different: divide by the number of different molecules, not by the number of rows.
    """
    times = Counter(rows.loc[is_valid(rows), "smiles"])
    # Number of rows with the same molecule as each row, [n]; 0 for a row without a valid molecule.
    held = np.asarray(
        [
            times[smiles] if valid else 0
            for smiles, valid in zip(rows["smiles"], is_valid(rows), strict=True)
        ]
    )
    counts = is_valid(rows) & (column(rows, "is_known") == 0) if must_be_new else is_valid(rows)
    # A molecule counts as long as one of its copies is left.
    part, own_part = (counts / np.maximum(held, 1)).sum(), counts & (held == 1)
    whole, own_whole = float(len(rows)), np.ones(len(rows))
    if of_different:
        whole, own_whole = (
            (is_valid(rows) / np.maximum(held, 1)).sum(),
            (held == 1).astype(np.float64),
        )
    value = float(weighted.divide(np.asarray([part]), np.asarray([whole]))[0])
    without_each = weighted.divide(part - own_part, whole - own_whole)
    return linear_resamples(value, without_each, weights)


def atom_stability(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the share of stable atoms among all atoms of each resample, [B]."""
    return weighted.mean_ratio(column(rows, "stable_atoms"), column(rows, "n_atoms"), weights)


def atoms(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the number of atoms in each resample, [B]."""
    return np.asarray(weights @ column(rows, "n_atoms"))


def distance(rows: pd.DataFrame, weights: np.ndarray, *, columns: str) -> np.ndarray:
    """Compute the Wasserstein-1 distance to the training molecules, averaged over the columns, [B].

    It varies as the jackknife over rows says: a resample is further from the training molecules than the sample is.
    """
    distances = []
    for name, reference in compared(rows, columns).items():
        values = column(rows, name)
        statistic = partial(_distance_of, values, reference)
        distances.append(linear_resampling.linear(statistic, values, weights, highest=np.inf))
    # [columns, B] -> [B].
    return np.asarray(np.mean(distances, axis=0))


def _distance_of(values: np.ndarray, reference: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return wasserstein_1(values, weights, reference)


def has_training(rows: pd.DataFrame, *, columns: str) -> np.ndarray:
    """Select the rows that have values in the columns compared with the training molecules, bool [n]."""
    found = compared(rows, columns)
    if not found:
        return np.zeros(len(rows), bool)
    return np.asarray(np.logical_and.reduce([has_value(name, rows) for name in found]))


def compared(rows: pd.DataFrame, columns: str) -> dict[str, np.ndarray]:
    """Find the columns of the training molecules to compare with: those named, or prefixed with the name and "_"."""
    reference: Mapping[str, np.ndarray] = (
        rows["training"].iloc[0] if "training" in rows and len(rows) else None
    ) or {}
    return {
        name: values
        for name, values in reference.items()
        if name == columns or name.startswith(f"{columns}_")
    }


def add_training(rows: pd.DataFrame) -> pd.DataFrame:
    """Attach the training molecules to every row for comparison, and drop their own rows, which are no samples.

    The column ``training`` holds the same mapping in each row: column -> its values over the rows of the rule ``training``. It is
    None without such rows. Empty cells of ``smiles`` in a table from a file become "".
    """
    rows = rows.assign(smiles=rows["smiles"].fillna("").astype(str))
    is_training = rows["rule"] == TRAINING
    samples = rows[~is_training]
    names = [
        str(name) for name in rows.columns if str(name) in NUMBERS or str(name).startswith(COUNTS)
    ]
    values = {name: column(rows[is_training], name) for name in names}
    reference = {
        name: found[np.isfinite(found)]
        for name, found in values.items()
        if np.isfinite(found).any()
    } or None
    return samples.assign(
        training=pd.Series([reference] * len(samples), index=samples.index, dtype=object)
    )


def build_metrics() -> dict[str, Metric]:
    """Build every metric of the task by name, in the order of the report."""
    return (
        _validity_metrics()
        | _variety_metrics()
        | _property_metrics()
        | _distance_metrics()
        | {"reward": _reward("reward", "Reward")}
    )


def _validity_metrics() -> dict[str, Metric]:
    mean = partial(mean_metric, better="higher", reason=NO_ROWS, bounds=SHARE)
    return {
        "validity": mean("is_valid", title="Validity"),
        "validity_fragment": mean("fragment_is_valid", title="Validity of the largest fragment"),
        "connected": mean("is_connected", title="Share of connected graphs"),
        "atom_stability": Metric(
            title="Share of stable atoms",
            better="higher",
            reason=NO_ROWS,
            usable=all_rows,
            compute=atom_stability,
            mass=atoms,
            bounds=SHARE,
        ),
        "molecule_stability": mean("is_stable", title="Share of molecules of stable atoms"),
    }


def _variety_metrics() -> dict[str, Metric]:
    share = partial(Metric, better="higher", bounds=SHARE)
    new = partial(share_of_different, must_be_new=True)
    return {
        "uniqueness": share(
            title="Uniqueness among valid molecules",
            reason=NO_VALID,
            usable=is_valid,
            compute=partial(share_of_different, must_be_new=False, of_different=False),
        ),
        "novelty": share(
            title="Novelty among different molecules",
            reason=NO_VALID,
            usable=is_valid,
            compute=partial(new, of_different=True),
        ),
        "vun": share(
            title="Valid, unique and novel (V.U.N.)",
            reason=NO_ROWS,
            usable=all_rows,
            compute=partial(new, of_different=False),
        ),
    }


def _property_metrics() -> dict[str, Metric]:
    mean = partial(mean_metric, reason=NO_VALID)
    return {
        "qed": mean("qed", title="QED of valid molecules", better="higher", bounds=SHARE),
        "logp": mean("logp", title="logP of valid molecules", better="none"),
        "sa": mean(
            "sa",
            title="Synthetic accessibility of valid molecules, 1 easy to 10 hard",
            better="lower",
            bounds=(1.0, 10.0),
        ),
        "size": mean_metric(
            "n_atoms",
            title="Heavy atoms",
            better="none",
            reason=NO_ROWS,
            bounds=NOT_NEGATIVE,
        ),
    }


def _distance_metrics() -> dict[str, Metric]:
    titles = {
        "atoms": "numbers of atoms by element",
        "bonds": "numbers of bonds by kind",
        "valency": "numbers of atoms by valency",
        "n_atoms": "heavy atoms",
        "qed": "QED",
        "logp": "logP",
        "sa": "synthetic accessibility",
    }
    return {
        "w1_size" if name == "n_atoms" else f"w1_{name}": Metric(
            title=f"W1 distance to the training set, {title}",
            better="lower",
            reason=f"{NO_VALID}, and {TO_COMPARE}"
            if name in ("qed", "logp", "sa")
            else f"needs {TO_COMPARE}",
            usable=partial(has_training, columns=name),
            compute=partial(distance, columns=name),
            bounds=NOT_NEGATIVE,
        )
        for name, title in titles.items()
    }


def _reward(name: str, title: str, better: Direction = "higher") -> Metric:
    return mean_metric(
        name,
        title=title,
        better=better,
        reason="needs at least one molecule that this reward was measured of",
    )


def reward_components(names: Iterable[str]) -> dict[str, Metric]:
    """Build a metric for each component ``reward_<name>``, in the order of the names."""
    return {
        name: _reward(name, f"Reward, {name.removeprefix(REWARD)} component")
        for name in names
        if name.startswith(REWARD)
    }


METRICS: dict[str, Metric] = build_metrics()


def build_suite(options: Mapping[str, float]) -> MetricSuite:
    """Build the metrics of this task with their words and columns; ``options`` are the fields of ``MetricOptions``.

    Raises:
        pydantic.ValidationError: if an option is unknown or out of range.
    """
    return MetricSuite(
        unit=Unit("sample_id", noun="sample", facts=("prompt_id",)),
        metrics=METRICS,
        rules=RULES,
        required=REQUIRED,
        finite=FLAGS,
        prepare=add_training,
        summary=partial(
            summary, min_uniqueness=MetricOptions.model_validate(dict(options)).min_uniqueness
        ),
        discover=reward_components,
        headline=("validity", "uniqueness", "vun", "logp", "reward"),
        bar=Bar(metrics=("vun",)),
    )
