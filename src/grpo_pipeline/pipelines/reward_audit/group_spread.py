"""Measure how a reward differs between the samples of an example, and which component causes the differences."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.pipelines.reward_audit.samples import Floats, PolicySamples

Bools = NDArray[np.bool_]

Names = NDArray[Any]


@dataclass(frozen=True)
class GroupSpread:
    """Spread of the reward within the groups of a policy; NaN and False for a group without scored samples.

    Attributes:
        std: sample standard deviation of the reward, [n].
        is_tied: True where the advantages are exactly 0, [n].
        is_constant: component -> True where the component is the same for all samples of the group up to rounding, [n].
        sums: component -> sum_g w_k (r_k - mean r_k) (R - mean R), [n]; the sum over all components is ``total``.
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
    """Find the groups [n, E] whose advantages are 0, by the rule of training."""
    return np.asarray(compute_advantages(torch.tensor(values)).is_tied.numpy())


def find_constant(values: Floats) -> Bools:
    """Find the groups [n, E] that differ only by rounding in float32, in which components are measured."""
    return np.asarray(compute_advantages(torch.tensor(values, dtype=torch.float32)).is_tied.numpy())


def _centre(values: Floats, is_scored: Bools) -> Floats:
    """Subtract each group's mean over the scored samples; 0 where not scored."""
    held = np.where(is_scored, values, 0.0)
    mean = held.sum(axis=1, keepdims=True) / np.maximum(is_scored.sum(axis=1, keepdims=True), 1)
    return np.where(is_scored, held - mean, 0.0)
