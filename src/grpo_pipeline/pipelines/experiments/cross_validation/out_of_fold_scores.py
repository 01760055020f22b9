"""Score out-of-fold rows with intervals: inside the folds, pooled, averaged over folds; and the held-out examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import (
    OutOfFold,
    ensemble,
)
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.bootstrap import Estimate, cluster_weights
from grpo_pipeline.statistics.fold_averages import FOLD, average_folds, spread_over_folds, stratify
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.statistics.over_seeds import mean_over_seeds

# The kinds of value of out-of-fold rows, the headline first.
KINDS: Mapping[str, Callable[[Metric], Metric]] = {
    "stratified": stratify,
    "pooled": lambda metric: metric,
    "fold_mean": average_folds,
}

# metric -> kind -> estimate, of one arm and seed
Kinds = dict[str, dict[str, Estimate]]

Score = Callable[[pd.DataFrame, Mapping[str, Metric], "Resamples"], Kinds]

# arm -> metric -> kind -> seed -> estimate
Scores = dict[str, dict[str, dict[str, dict[int, Estimate]]]]


@dataclass(frozen=True)
class Resamples:
    """Counts of each cluster in each resample; the same for every arm, seed, fold and metric.

    Attributes:
        positions: cluster -> column of ``counts``.
        counts: float64 [B, C].
        cluster: column of the clusters.
    """

    positions: Mapping[str, int]
    counts: np.ndarray
    cluster: str

    @classmethod
    def draw(cls, rows: pd.DataFrame, params: EvaluationParams) -> "Resamples":
        """Draw resamples of the clusters of these rows."""
        names = pd.Series(sorted(rows[params.cluster].unique()), name=params.cluster)
        counts = cluster_weights(names, resamples=params.resamples, seed=params.seed)
        return cls({name: position for position, name in enumerate(names)}, counts, params.cluster)

    def of(self, rows: pd.DataFrame) -> np.ndarray:
        """Look up the weights of these rows, [B, n]."""
        return np.asarray(self.counts[:, rows[self.cluster].map(self.positions).to_numpy()])


def score_tested(rows: pd.DataFrame, metrics: Mapping[str, Metric], resamples: Resamples) -> Kinds:
    """Compute the three kinds of value of out-of-fold rows."""
    weights = resamples.of(rows)
    return {
        name: {
            kind: estimate(change(metric), rows, weights, cluster=resamples.cluster)
            for kind, change in KINDS.items()
        }
        for name, metric in metrics.items()
    }


def score_held_out(
    rows: pd.DataFrame, metrics: Mapping[str, Metric], resamples: Resamples, *, key: str
) -> Kinds:
    """Score the held-out examples: by the models' mean prediction, and as the mean of the single models' values."""
    together = ensemble(rows, key)
    tables = [together, *(part.reset_index(drop=True) for _, part in rows.groupby(FOLD, sort=True))]
    weights = [resamples.of(table) for table in tables]
    found: Kinds = {}
    for name, metric in metrics.items():
        whole, *singles = [
            estimate(metric, table, of_table, cluster=resamples.cluster)
            for table, of_table in zip(tables, weights, strict=True)
        ]
        mean = mean_over_seeds(dict(enumerate(singles)), resamples=len(resamples.counts))
        found[name] = {"ensemble": whole, "single_models": mean}
    return found


def score_folds(rows: OutOfFold, suite: MetricSuite) -> dict[str, dict[str, Any]]:
    """Return arm -> metric -> the folds' values (each the mean over the seeds) and their spread."""
    return {
        arm: {
            name: spread_over_folds(metric, list(by_seed.values())).document()
            for name, metric in suite.metrics.items()
        }
        for arm, by_seed in rows.tested.items()
        if by_seed
    }


def counts(rows: pd.DataFrame, evaluation: EvaluationParams) -> dict[str, Any]:
    """Return the number of examples and of their clusters."""
    return {
        "examples": len(rows),
        "clusters": int(rows[evaluation.cluster].nunique()),
        "cluster": evaluation.cluster,
    }
