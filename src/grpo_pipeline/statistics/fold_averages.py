"""Average metrics of out-of-fold predictions: each row was predicted by the model of its fold, and those models differ.

    stratified  sum_f m_f v_f / sum_f m_f     v_f: the metric inside fold f; m_f: what it rests on there (``Metric.mass``)
    pooled      the metric of all rows together, as if one model had scored them
    fold_mean   mean_f v_f

The stratified value is the headline. The AUROC compares pairs, m_f is the number of pairs in fold f, and so the stratified
AUROC is the share of won pairs among those that one model has scored. Pooled, a pair of two folds compares the scores of two
models, which need not be on one scale. For a mean over rows stratified and pooled are the same number. A fold that leaves the
metric undefined (one class only) counts nothing and is named; it is never 0.5.
Source: Airola et al., Computational Statistics & Data Analysis 55, 2011 (pooling and averaging of cross-validated AUROCs).
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
        """The folds that say nothing."""
        return [fold for fold, value in self.values.items() if not np.isfinite(value)]

    def document(self) -> dict[str, object]:
        """Return the values, their spread (standard deviation with n - 1) and what is undefined, for JSON."""
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
    """Return the metric as a mean over folds, each by what it rests on; the rows need the column ``fold``."""
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
    """Return what computes the metric inside each fold and combines the folds; the rows are usable ones."""

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
