"""Build the document of the reward audit from scored samples (docs/reward_audit.md)."""

from functools import partial
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.reward_audit.agreement import agree_between, agree_within
from grpo_pipeline.pipelines.reward_audit.group_spread import GroupSpread, measure_spread
from grpo_pipeline.pipelines.reward_audit.samples import Floats, PolicySamples, ScoredSamples
from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.bootstrap import (
    Estimate,
    cluster_weights,
    describe,
    paired_difference,
)
from grpo_pipeline.tasks.audit_plan import AuditPlan

Entry = dict[str, Any]


class RewardDocument:
    """Builder of the document; all sections use the same resamples of whole clusters."""

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
        """Describe a policy: its reward, the metrics of its samples, and how they differ inside a group."""
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
        """Average the mean of each example's samples [n, E] over examples; NaNs are left out."""
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
        return describe(estimate)
