"""Compare each sample with the mean reward of its group, weighted by length: the baseline of least variance under OPO.

How this differs from the paper: a group that ties is exactly 0, and a NaN reward is a sample that was not scored.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.types import Advantages


def optimal_baseline_advantages(
    rewards: Tensor, lengths: Tensor, *, tie_tolerance: float = 1e-8
) -> Advantages:
    """Score each sample against the mean reward of its prompt, in which a long sample counts more.

        A[p, g] = r[p, g] - sum_g n[p, g] * r[p, g] / sum_g n[p, g]

    The best baseline weighs a reward by the squared norm of its sample's gradient; the paper takes that as proportional to the
    number n of decisions. Where all samples are equally long this is ``mean_only``. Nothing is divided by a deviation.
    Source: OPO, arXiv 2505.23585.

    Args:
        rewards: [P, G], NaN where a sample was not scored.
        lengths: [P, G], decisions of each sample.
        tie_tolerance: as in ``compute_advantages``.

    Returns:
        Values float64 [P, G]; exactly 0 in a group that ties, where not scored, and in a group without any decision.

    Raises:
        ValueError: for shapes that differ, an infinite reward, or a group of one.
    """
    require_shape("lengths", lengths, rewards.shape, "give one per sample")
    # Shapes, ties and unscored samples are judged as everywhere; only the baseline differs.
    plain = compute_advantages(rewards, method="mean_only", tie_tolerance=tie_tolerance)
    r = rewards.detach().double()
    is_scored = ~r.isnan()
    weights = lengths.double().masked_fill(~is_scored, 0.0)  # [P, G]
    total = weights.sum(dim=1, keepdim=True)  # [P, 1]
    baseline = (weights * r.nan_to_num()).sum(dim=1, keepdim=True) / total.clamp(min=1.0)  # [P, 1]
    is_silent = plain.is_tied[:, None] | ~is_scored | (total == 0)  # [P, G]
    values = torch.where(is_silent, 0.0, r - baseline)
    return Advantages(values=values, is_tied=plain.is_tied)
