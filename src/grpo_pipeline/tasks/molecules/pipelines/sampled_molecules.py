"""Gather the molecules of the figures from prediction rows: the start, the arms, the training molecules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.figures import colour_of
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.alignment import align_arms
from grpo_pipeline.statistics.bootstrap import Estimate, cluster_weights, describe
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds, MetricSuite

START_COLOUR, TRAINING_COLOUR = "#999999", "#222222"


@dataclass(frozen=True)
class SampledMolecules:
    """Sampled graphs with aligned rows, and the training molecules.

    Attributes:
        rows: group -> a row per graph: the chance rule of the baseline arm first (if there is one), then the arms.
        colours: group -> its colour.
        training: column -> its values over the training molecules; empty if the predictions hold none.
        weights: how often each resample holds each row, [B, n]; the same resamples as in the comparison.
        cluster: column of the clusters that are resampled.
    """

    rows: dict[str, pd.DataFrame]
    colours: dict[str, str]
    training: Mapping[str, np.ndarray]
    weights: np.ndarray
    cluster: str

    def mean(
        self, who: str, values: np.ndarray, *, is_in: np.ndarray
    ) -> tuple[float, float, float]:
        """Compute the mean of some of the rows with its 95% interval; without an interval, both ends are the mean.

        Args:
            who: whose rows.
            values: one number per row, [n]; read where ``is_in`` only.
            is_in: which rows take part, [n]; at least one.
        """
        if len(values) != len(self.rows[who]):
            raise ValueError(
                f"values must be one per row of {who}, got {len(values)} for {len(self.rows[who])}; take its rows"
            )
        entry = self.describe(who, values, is_in=is_in)
        value = entry["value"]
        low, high = entry["ci95"] or (value, value)
        return value, low, high

    def describe(
        self, who: str, values: np.ndarray, *, is_in: np.ndarray, bounds: Bounds = UNBOUNDED
    ) -> dict[str, Any]:
        """Describe the mean of some of the rows as an entry of a document; arguments as ``mean``, and the range of the mean."""
        weights, part = self.weights[:, is_in], values[is_in]
        resamples = weighted.mean(part, weights)
        found = Estimate(
            float(part.mean()),
            resamples,
            n=len(part),
            reason="no such graph",
            clusters=len(set(self.rows[who][self.cluster][is_in])),
            bounds=bounds,
        )
        return describe(found, max_undefined=1.0)


def gather_molecules(
    arms: Mapping[str, pd.DataFrame], params: EvaluationParams, *, suite: MetricSuite
) -> SampledMolecules:
    """Align the tables of all arms and draw the resamples of the comparison.

    Args:
        arms: arm -> prediction rows (docs/molecules/rewards.md).
        params: names of the rules and of the cluster; resamples and seed.
        suite: the task's metrics.

    Raises:
        ValueError: if the tables do not belong together.
    """
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    rows = {arm: rules[params.headline_rule] for arm, rules in tables.items()}
    before = tables[params.baseline_arm].get(params.chance_rule)
    first = next(iter(rows.values()))
    return SampledMolecules(
        rows=({params.chance_rule: before} if before is not None else {}) | rows,
        colours={params.chance_rule: START_COLOUR}
        | colour_of(rows, control=params.control, shown=params.baseline_arm),
        training=first["training"].iloc[0] or {},
        weights=cluster_weights(
            first[params.cluster], resamples=params.resamples, seed=params.seed
        ),
        cluster=params.cluster,
    )
