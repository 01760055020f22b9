"""Read the rows of ``Task.audit`` into checked arrays [n examples, E samples] per policy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_pipeline.tasks.audit_plan import AuditPlan

Floats = NDArray[np.float64]
COMPONENT_PREFIX = "reward_"


@dataclass(frozen=True)
class PolicySamples:
    """The samples of one policy: every array is float64 [n, E], examples in the order of their names.

    Attributes:
        reward: NaN where a sample was not scored.
        components: component -> its values, before its weight.
        metrics: metric -> its values, NaN where undefined.
    """

    reward: Floats
    components: Mapping[str, Floats]
    metrics: Mapping[str, Floats]

    @property
    def is_sampled(self) -> bool:
        """Check whether the policy has groups to compare: a policy that always acts the same has one sample."""
        return int(self.reward.shape[1]) > 1

    @property
    def scored(self) -> dict[str, Floats]:
        """Return the columns that are compared with metrics: the reward and its components."""
        return {"reward": self.reward, **self.components}


@dataclass(frozen=True)
class ScoredSamples:
    """All policies on the same examples; clusters [n] has the name of the cluster's column."""

    clusters: pd.Series
    policies: Mapping[str, PolicySamples]


def read_samples(rows: pd.DataFrame, plan: AuditPlan) -> ScoredSamples:
    """Return the samples by policy, in the order of the plan.

    Raises:
        ValueError: if a column or a policy is missing, a component has no weight, or a reward is infinite. Also if policies
            differ in their examples, or examples in their number of samples.
    """
    components = [
        name.removeprefix(COMPONENT_PREFIX)
        for name in rows.columns
        if name.startswith(COMPONENT_PREFIX)
    ]
    _check_columns(rows, plan, components)
    # A task whose data lack the true answer has no samples of the ceiling.
    scored = set(rows["policy"])
    known = [name for name, role in plan.policies.items() if role != "ceiling" or name in scored]
    policies = {
        name: _one_policy(rows[rows["policy"] == name], name, plan, components)
        for name in plan.policies
        if name in known
    }
    units = rows.drop_duplicates(plan.example).sort_values(plan.example)
    for name, samples in policies.items():
        if len(samples.reward) != len(units):
            raise ValueError(
                f"every audited policy must score the same examples, got {len(samples.reward)} of {len(units)} for {name}; "
                "score each of them"
            )
    return ScoredSamples(units[plan.cluster].reset_index(drop=True), policies)


def _check_columns(rows: pd.DataFrame, plan: AuditPlan, components: list[str]) -> None:
    needed = ["policy", "sample", plan.example, plan.cluster, "reward", *plan.metrics]
    if missing := [name for name in needed if name not in rows.columns]:
        raise ValueError(
            f"the rows of an audit must have the columns {needed}, got none named {missing}; return them"
        )
    if unweighted := sorted(set(components) - set(plan.weights)):
        raise ValueError(
            f"every reward component must have a weight, got none for {unweighted}; name it in the audit plan"
        )
    infinite = [
        name
        for name in ("reward", *(COMPONENT_PREFIX + component for component in components))
        if np.isinf(rows[name]).any()
    ]
    if infinite:
        raise ValueError(
            f"rewards must be finite, or NaN where not scored, got an infinite one in {infinite}; use a penalty"
        )


def _one_policy(
    rows: pd.DataFrame, name: str, plan: AuditPlan, components: list[str]
) -> PolicySamples:
    sizes = sorted(set(rows.groupby(plan.example).size()))
    if len(sizes) != 1:
        raise ValueError(
            f"every example must have the same number of samples of policy {name}, got {sizes}; score each of them"
        )
    ordered = rows.sort_values([plan.example, "sample"])

    def grid(column: str) -> Floats:
        return ordered[column].to_numpy(np.float64).reshape(-1, sizes[0])

    return PolicySamples(
        reward=grid("reward"),
        components={component: grid(COMPONENT_PREFIX + component) for component in components},
        metrics={metric: grid(metric) for metric in plan.metrics},
    )
