"""The mean over training seeds, with an interval that holds both the choice of test examples and the luck of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from grpo_pipeline.pipelines.evaluation.bootstrap import LEVEL

METHOD = "t interval, seeds and clusters: variance of the bootstrap over both, degrees of freedom by Satterthwaite"
NOT_COVERED = (
    "The intervals hold the choice of test examples, not the luck of training: another seed may lie outside. "
    "make results trains on several seeds, the pipeline compare many arms."
)


def over_seeds(values: Sequence[float], *, cluster_variance: float, clusters: int) -> dict[str, Any]:
    """Return the mean over the seeds with a 95% interval.

        V = s^2 / S + B,    df = V^2 / ((s^2 / S)^2 / (S - 1) + B^2 / (clusters - 1)),    mean -+ t_df sqrt(V)

    s is the standard deviation of the S seeds, B the variance of their mean when clusters are drawn anew, by the bootstrap. V is
    the variance of a bootstrap that draws seeds and, within them, clusters, without its bias of (S - 1) / S: three seeds drawn
    from three are too alike, and their percentiles hold the truth in 80% of cases instead of 95. Seeds that are tested on the
    same clusters share B; seeds with clusters of their own have part of B in s already, so that the interval is a little wide.
    How often it holds a known truth: docs/metrics.md, tests/pipelines/evaluation/test_over_seeds.py.
    Source: Satterthwaite, Biometrics Bulletin 2, 1946.

    Args:
        values: the metric of each seed, [S], finite.
        cluster_variance: B.
        clusters: number of clusters behind B, in all seeds.

    Returns:
        ``value``, ``ci95`` (None with a single seed), ``seeds`` (the values), ``sd`` (of the seeds, None with a single one).

    Raises:
        ValueError: if there is no value.
    """
    if not len(values):
        raise ValueError("values must hold at least one seed, got none; train one")
    count, mean = len(values), float(np.mean(values))
    found: dict[str, Any] = {"value": mean, "ci95": None, "sd": None, "seeds": [float(value) for value in values]}
    if count < 2:
        return found
    spread = float(np.var(values, ddof=1))
    variance = spread / count + cluster_variance
    half = 0.0
    if variance > 0:
        lost = (spread / count) ** 2 / (count - 1) + cluster_variance**2 / max(clusters - 1, 1)
        half = float(student.ppf((1 + LEVEL) / 2, variance**2 / lost) * np.sqrt(variance))
    return found | {"ci95": [mean - half, mean + half], "sd": float(np.sqrt(spread))}
