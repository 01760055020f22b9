"""Average metrics over the folds of a cross-validation, in which each fold has a model of its own.

    stratified  sum_f m_f v_f / sum_f m_f     v_f: the metric inside fold f; m_f: its weight there (``Metric.mass``)
    pooled      the metric of all rows together, as if one model had scored them
    fold_mean   mean_f v_f

The stratified value is the headline. For an AUROC, m_f is the number of pairs in fold f: the stratified AUROC is the share of won
pairs within folds. A pooled pair may compare scores of two models, which need not be on one scale. For a mean over rows, the
stratified and the pooled value are equal. A fold with an undefined metric (one class only) has the weight 0 and is named; it is
never 0.5. Source: Airola et al., Computational Statistics & Data Analysis 55, 2011 (pooling and averaging of cross-validated
AUROCs).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from grpo_pipeline.statistics.metric import Metric

FOLD = "fold"

# (values [F, B] with NaN where undefined, masses [F, B]) -> one value per resample [B]
Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class FoldSpread:
    """A metric fold by fold.

    Attributes:
        values: fold -> value, NaN where the fold leaves the metric undefined.
    """

    values: Mapping[str, float]

    @property
    def undefined(self) -> list[str]:
        """List the folds that leave the metric undefined."""
        return [fold for fold, value in self.values.items() if not np.isfinite(value)]

    def document(self) -> dict[str, object]:
        """Describe the values, their standard deviation (n - 1) and the undefined folds, for JSON."""
        defined = [value for value in self.values.values() if np.isfinite(value)]
        return {
            "folds": {
                fold: float(value) if np.isfinite(value) else None
                for fold, value in self.values.items()
            },
            "sd": float(np.std(defined, ddof=1)) if len(defined) > 1 else None,
            "min": min(defined, default=None),
            "max": max(defined, default=None),
            "undefined_folds": self.undefined,
        }


def stratify(metric: Metric) -> Metric:
    """Turn a metric into its mean over folds, weighted by ``Metric.mass``; the rows need the column ``fold``."""
    return replace(metric, compute=_by_fold(metric, _weighted_mean))


def average_folds(metric: Metric) -> Metric:
    """Return the metric as a plain mean over the folds that define it; the rows need the column ``fold``."""
    return replace(metric, compute=_by_fold(metric, _plain_mean))


def spread_over_folds(metric: Metric, seeds: Sequence[pd.DataFrame]) -> FoldSpread:
    """Return the metric of each fold, in the order of the folds' names.

    Args:
        metric: the metric.
        seeds: out-of-fold rows of each seed; a fold's value is the mean over them.
    """
    tables = [
        {
            str(name): float(metric(part, np.ones((1, len(part))))[0])
            for name, part in rows.groupby(FOLD, sort=True)
        }
        for rows in seeds
    ]
    return FoldSpread(
        {fold: float(np.mean([values[fold] for values in tables])) for fold in tables[0]}
    )


def _by_fold(metric: Metric, combine: Combine) -> Callable[[pd.DataFrame, np.ndarray], np.ndarray]:
    """Build a function that computes the metric inside each fold and combines the folds; it reads usable rows."""

    def compute(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        fold_of = rows[FOLD].astype(str).to_numpy()
        values, masses = [], []
        for fold in np.unique(fold_of):
            inside = fold_of == fold  # [n]
            values.append(metric.compute(rows[inside], weights[:, inside]))
            masses.append(metric.mass(rows[inside], weights[:, inside]))
        return combine(np.array(values), np.array(masses))  # [F, B] each -> [B]

    return compute


def _weighted_mean(values: np.ndarray, masses: np.ndarray) -> np.ndarray:
    counted = np.where(np.isfinite(values), masses, 0.0)
    total = counted.sum(axis=0)  # [B]
    mean = np.full(total.shape, np.nan)
    np.divide((counted * np.nan_to_num(values)).sum(axis=0), total, out=mean, where=total > 0)
    return mean


def _plain_mean(values: np.ndarray, masses: np.ndarray) -> np.ndarray:
    return _weighted_mean(values, np.ones_like(masses))
