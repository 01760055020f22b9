"""Build the document of the reward audit from scored samples (docs/reward_audit.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.pipelines.reward_audit.samples import Floats, PolicySamples, ScoredSamples
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    paired_difference,
)
from grpo_pipeline.statistics.weighted import divide
from grpo_pipeline.tasks.audit_plan import AuditPlan

# Measure how a reward differs between the samples of one example (advantages see no more), and which component causes it.

Bools = NDArray[np.bool_]
Names = NDArray[Any]


@dataclass(frozen=True)
class GroupSpread:
    """Spread of the reward within the groups of one policy; NaN and False where nothing of a group was scored.

    Attributes:
        std: sample standard deviation of the reward, [n].
        is_tied: True where the advantages are exactly 0, [n].
        is_constant: component -> True where the component is the same for all samples of the group up to rounding, [n].
        sums: component -> sum_g w_k (r_k - mean r_k) (R - mean R), [n]; over all components they add up to ``total``.
        total: sum_g (R - mean R)^2, [n].
    """

    std: Floats
    is_tied: Bools
    is_constant: Mapping[str, Bools]
    sums: Mapping[str, Floats]
    total: Floats


def measure_spread(samples: PolicySamples, weights: Mapping[str, float]) -> GroupSpread:
    """Return the spread within each group.

        share of component k = sum_p sums_k[p] / sum_p total[p] = cov(w_k r_k, R) / var(R) within groups

    The shares add up to 1. A component that does not differ has the share 0, however large it is; a negative share says that the
    component pulls against the others. A tie is what ``core.policy_gradient.advantages`` calls one.

    Args:
        samples: of a policy with at least two samples per example.
        weights: component -> weight.
    """
    is_scored = np.isfinite(samples.reward)
    centred = _centre(samples.reward, is_scored)
    components = {
        name: _centre(values, is_scored)
        for name, values in samples.components.items()
        if weights[name]
    }
    total = (centred**2).sum(axis=1)  # [n]
    count = is_scored.sum(axis=1)
    variance = np.divide(total, count - 1, out=np.full(len(total), np.nan), where=count > 1)
    return GroupSpread(
        std=np.sqrt(variance),
        is_tied=find_ties(samples.reward),
        is_constant={name: find_constant(values) for name, values in samples.components.items()},
        sums={
            name: weights[name] * (components[name] * centred).sum(axis=1)
            if name in components
            else 0 * total
            for name in samples.components
        },
        total=total,
    )


def find_ties(values: Floats) -> Bools:
    """Say in which groups [n, E] the advantages of these rewards are 0, as training finds it."""
    return np.asarray(compute_advantages(torch.tensor(values)).is_tied.numpy())


def find_constant(values: Floats) -> Bools:
    """Say in which groups [n, E] nothing but rounding differs; components are measured in float32, and its rounding is meant."""
    return np.asarray(compute_advantages(torch.tensor(values, dtype=torch.float32)).is_tied.numpy())


def _centre(values: Floats, is_scored: Bools) -> Floats:
    """Subtract each group's mean over the scored samples; 0 where not scored."""
    held = np.where(is_scored, values, 0.0)
    mean = held.sum(axis=1, keepdims=True) / np.maximum(is_scored.sum(axis=1, keepdims=True), 1)
    return np.where(is_scored, held - mean, 0.0)


# Whether a reward and a reported metric go up together: inside groups, where a policy learns, and between examples.

WITHIN_REASON = "reward and metric never both differ inside a group"
BETWEEN_REASON = "needs at least three examples, with different values of both"


def agree_within(
    reward: Floats, metric: Floats, weights: Floats, *, clusters: Names
) -> dict[str, Estimate]:
    """Correlate inside groups: each group's mean (of values, or of ranks inside the group) is taken off, then all are pooled.

        sum_p sum_g (x - mean_p x)(y - mean_p y) / sqrt(sum (x - mean_p x)^2 * sum (y - mean_p y)^2)

    Only groups in which both differ take part: the others say nothing. Differences between examples cannot produce it.

    Args:
        reward: x, [n, E], NaN where not scored.
        metric: y, [n, E], NaN where undefined.
        weights: how often each resample holds each example, [B, n]; the first row is the sample itself.
        clusters: of each example, [n].

    Returns:
        ``pearson`` of the values, ``spearman`` of the ranks; n counts the groups.
    """
    is_known = np.isfinite(reward) & np.isfinite(metric)
    x, y = (np.where(is_known, values, np.nan) for values in (reward, metric))
    keep = (is_known.sum(axis=1) > 1) & ~find_constant(x) & ~find_constant(y)
    found = _both_kinds(x[keep], y[keep], weights[:, keep], _pooled, reason=WITHIN_REASON)
    return _resting_on(clusters[keep], found)


def agree_between(
    reward: Floats, metric: Floats, weights: Floats, *, clusters: Names
) -> dict[str, Estimate]:
    """Correlate the means of the examples; arguments and result as ``agree_within``, n counts the examples.

    The ranks are those of the sample, also in the resamples.
    """
    is_known = np.isfinite(reward) & np.isfinite(metric)
    keep = is_known.any(axis=1)
    # Means over the known samples of each example that has one.
    counts = is_known[keep].sum(axis=1)  # [kept]
    x, y = (np.where(is_known, v, 0.0)[keep].sum(axis=1) / counts for v in (reward, metric))
    if len(x) < 3 or find_constant(x[None])[0] or find_constant(y[None])[0]:
        x, y, keep = x[:0], y[:0], np.zeros_like(keep)
    found = _both_kinds(x[None], y[None], weights[:, keep], _between, reason=BETWEEN_REASON)
    return _resting_on(clusters[keep], found)


def _resting_on(clusters: Names, found: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return the estimates with the number of clusters that they rest on."""
    return {name: replace(one, clusters=len(set(clusters))) for name, one in found.items()}


def _both_kinds(
    x: Floats,
    y: Floats,
    weights: Floats,
    correlate: Callable[[Floats, Floats, Floats], Floats],
    *,
    reason: str,
) -> dict[str, Estimate]:
    """Correlate the values and their ranks along the last axis."""
    kinds = {"pearson": (x, y), "spearman": (_ranks(x), _ranks(y))}
    found = {name: correlate(a, b, weights) for name, (a, b) in kinds.items()}
    return {
        name: Estimate(
            float(r[0]),
            r[1:],
            n=weights.shape[1],
            reason=reason,
            clusters=0,
            bounds=(-1.0, 1.0),
        )
        for name, r in found.items()
    }


def _ranks(values: Floats) -> Floats:
    """Rank along the last axis, ties by their mean rank; NaN stays NaN."""
    return values if values.size == 0 else np.asarray(rankdata(values, axis=-1, nan_policy="omit"))


def _pooled(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the pooled correlation of groups [n, E] in each resample, [B]."""
    x, y = (
        (np.nan_to_num(values - np.nanmean(values, axis=1, keepdims=True)) for values in (x, y))
        if len(x)
        else (x, y)
    )
    # Sums of each group, [n], and of each resample, [B, n] @ [n] -> [B].
    return _correlation(*(weights @ sums.sum(axis=1) for sums in (x * y, x * x, y * y)))


def _between(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the correlation of examples x, y [1, n] in each resample, [B]."""
    count = weights.sum(axis=1)  # [B]
    # Shifted first: the moments of values far from 0 would cancel.
    a, b = (values[0] - (values.mean() if values.size else 0.0) for values in (x, y))

    def moment(u: Floats, v: Floats) -> Floats:
        return divide(weights @ (u * v), count) - divide(weights @ u, count) * divide(
            weights @ v, count
        )

    return _correlation(moment(a, b), moment(a, a), moment(b, b))


def _correlation(xy: Floats, xx: Floats, yy: Floats) -> Floats:
    """Return xy / sqrt(xx * yy) of each resample, [B]; NaN where a variance is 0 beside those of the others."""
    differs = [
        np.isfinite(v) & (v > 1e-12 * np.max(v, where=np.isfinite(v), initial=0.0))
        for v in (xx, yy)
    ]
    spread: Floats = np.sqrt(np.where(differs[0] & differs[1], xx * yy, 0.0))
    found: Floats = np.clip(divide(xy, spread), -1.0, 1.0)
    return found


Entry = dict[str, Any]
# An interval in which more resamples than this leave the value undefined is not given.
MAX_UNDEFINED = 0.1


class RewardDocument:
    """Puts the sections of the document together, all on the same resamples of whole clusters."""

    def __init__(
        self, samples: ScoredSamples, plan: AuditPlan, *, resamples: int, seed: int
    ) -> None:
        """Draw the resamples; the first row of weights is the sample itself."""
        self._samples, self._plan = samples, plan
        drawn = cluster_weights(samples.clusters, resamples=resamples, seed=seed)
        self._weights = np.vstack([np.ones(drawn.shape[1]), drawn])
        self._clusters = samples.clusters.to_numpy()

    def build(self) -> dict[str, Any]:
        """Return ``n``, ``policies``, ``agreement`` and the components that have no weight and no values as JSON values."""
        start = self._samples.policies[self._plan.start]
        sampled = {
            name: samples for name, samples in self._samples.policies.items() if samples.is_sampled
        }
        return {
            "n": {
                "examples": len(self._samples.clusters),
                "clusters": len(set(self._clusters)),
                "cluster": self._plan.cluster,
            },
            "start": self._plan.start,
            "not_computed": [
                name
                for name, weight in self._plan.weights.items()
                if not weight and name not in start.components
            ],
            "metrics": dict(self._plan.metrics),
            "policies": {
                name: self._policy(name, samples)
                for name, samples in self._samples.policies.items()
            },
            "agreement": {name: self._agreement(samples) for name, samples in sampled.items()},
        }

    def _policy(self, name: str, samples: PolicySamples) -> dict[str, Any]:
        """Describe one policy: what it is paid, what its samples are worth, how they differ inside a group."""
        start = self._samples.policies[self._plan.start]
        is_start = name == self._plan.start
        return {
            "role": self._plan.policies[name],
            "samples": samples.reward.shape[1],
            "not_scored": int(np.isnan(samples.reward).sum()),
            "reward": self._entry(self._mean(samples.reward)),
            "more_than_start": None if is_start else self._gap(samples.reward, start.reward),
            "components": {
                component: self._entry(self._mean(values))
                for component, values in samples.components.items()
            },
            "metrics": {
                metric: self._entry(self._mean(values))
                for metric, values in samples.metrics.items()
            },
            "metrics_more_than_start": {}
            if is_start
            else {
                metric: self._gap(values, start.metrics[metric])
                for metric, values in samples.metrics.items()
            },
            "groups": self._groups(measure_spread(samples, self._plan.weights))
            if samples.is_sampled
            else None,
        }

    def _groups(self, spread: GroupSpread) -> dict[str, Any]:
        reason = "no group has two scored samples"
        return {
            "std": self._entry(self._over_examples(spread.std, reason=reason)),
            "tied": float(spread.is_tied.mean()),
            "components": {
                component: {
                    "weight": self._plan.weights[component],
                    "constant": float(is_constant.mean()),
                    "explained": self._entry(self._ratio(spread.sums[component], spread.total)),
                }
                for component, is_constant in spread.is_constant.items()
            },
        }

    def _agreement(self, samples: PolicySamples) -> dict[str, Any]:
        """Correlate the reward and each component with each metric."""
        kinds = {
            "within": partial(agree_within, clusters=self._clusters),
            "between": partial(agree_between, clusters=self._clusters),
        }
        return {
            scored: {
                metric: {
                    kind: {
                        name: self._entry(one)
                        for name, one in correlate(values, measured, self._weights).items()
                    }
                    for kind, correlate in kinds.items()
                }
                for metric, measured in samples.metrics.items()
            }
            for scored, values in samples.scored.items()
        }

    def _mean(self, values: Floats) -> Estimate:
        """Return the mean over examples of the means of their samples [n, E]; what is NaN is left out."""
        is_known = np.isfinite(values)
        sums = np.where(is_known, values, 0.0).sum(axis=1)  # [n]
        return self._over_examples(
            weighted.divide(sums, is_known.sum(axis=1)), reason="no example has a value"
        )

    def _over_examples(self, values: Floats, *, reason: str) -> Estimate:
        keep = np.isfinite(values)
        means = weighted.mean(values[keep], self._weights[:, keep])
        return Estimate(
            float(means[0]),
            means[1:],
            n=int(keep.sum()),
            reason=reason,
            clusters=len(set(self._clusters[keep])),
        )

    def _ratio(self, numerators: Floats, denominators: Floats) -> Estimate:
        ratios: Floats = np.asarray(weighted.mean_ratio(numerators, denominators, self._weights))
        return Estimate(
            float(ratios[0]),
            ratios[1:],
            n=len(numerators),
            reason="no group's samples differ",
            clusters=len(set(self._clusters)),
        )

    def _gap(self, values: Floats, start: Floats) -> Entry:
        """Return the difference of two means over the examples in which both are known, paired."""
        known = [np.isfinite(side).any(axis=1, keepdims=True) for side in (values, start)]  # [n, 1]
        treated, control = (
            self._mean(np.where(known[0] & known[1], side, np.nan)) for side in (values, start)
        )
        return self._entry(paired_difference(treated, control))

    def _entry(self, estimate: Estimate) -> Entry:
        return describe(estimate, max_undefined=MAX_UNDEFINED)
