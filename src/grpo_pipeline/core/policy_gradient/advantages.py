"""Turn rewards [P, G] into advantages [P, G], always in float64.

How this differs from the papers: a group that ties is exactly 0 (the papers divide its round-off by std + eps), and a
NaN reward is a sample that was not scored: it leaves the statistics and gets advantage 0. For advantages per decision,
against a value baseline, see ``returns.generalized_advantages``.
"""

from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.policy_gradient.spread import (
    Std,
    check_statistics,
    deviation,
    find_ties,
    mean_of_scored,
)
from grpo_pipeline.core.rewards import refuse_infinite
from grpo_pipeline.core.types import Advantages

Method = Literal["group", "leave_one_out", "mean_only", "batch", "reinforce_plus_plus"]
METHODS = ("group", "leave_one_out", "mean_only", "batch", "reinforce_plus_plus")
# Methods whose baseline is made of the group, and so goes beside no predicted value.
OWN_BASELINE = ("leave_one_out", "reinforce_plus_plus")


def compute_advantages(
    rewards: Tensor,
    *,
    method: Method = "group",
    std: Std = "sample",
    eps: float = 1e-4,
    tie_tolerance: float = 1e-8,
    values: Tensor | None = None,
) -> Advantages:
    """Score each sample against a baseline of its own prompt.

        group:          A = (r - mean_g) / (std_g + eps)            DeepSeekMath, arXiv 2402.03300, section 4.1
        leave_one_out:  A = r - (sum_g - r) / (n_g - 1)             RLOO, arXiv 2402.14740
        mean_only:      A = r - mean_g                              Dr. GRPO, arXiv 2503.20783
        batch:          A = (r - mean_g) / (std_batch + eps)        arXiv 2508.08221
        reinforce_plus_plus:
                        A = c / (std_batch(c) + eps), c = r - mean_g    REINFORCE++ with a baseline, arXiv 2501.03262

    ``std_batch`` is taken over all scored rewards of the batch: prompts of unlike means make it large. That of
    ``reinforce_plus_plus`` is taken of their distances c to the means of their groups. With ``values`` the predicted reward V[p]
    takes the place of mean_g; where all rewards of the batch tie, ``batch`` then has no scale and is r - V, not that divided by
    eps. A group ties where ``max - min <= tie_tolerance + max(tie_tolerance, 4 ulp of the input type) * max|r|``; its row is
    exactly 0, except that ``mean_only`` and ``batch`` with ``values`` keep r - V, which a tie does not blur.

    Args:
        rewards: [P, G], NaN where a sample was not scored.
        method: the baseline and the scale.
        std: "sample" divides by n - 1 (as TRL does), "population" by n.
        eps: added to the standard deviation, in units of the reward.
        tie_tolerance: absolute and relative spread below which a group counts as tied.
        values: [P], predicted reward of each prompt, or None.

    Raises:
        ValueError: for a shape other than [P, G], an infinite reward, or a group too small for the method.
    """
    check_statistics(std, eps, tie_tolerance)
    _check(rewards, method, values)
    r = rewards.detach().double()
    is_scored = ~r.isnan()
    # Ties are judged in the type of the rewards, because its rounding is what a tie may differ by.
    is_tied = find_ties(rewards.detach(), is_scored, tie_tolerance)  # [P]
    centred = (r - _baseline(r, is_scored, values)).masked_fill(~is_scored, 0.0)
    measured = centred if method == "reinforce_plus_plus" else r
    scale = _scale(measured, is_scored, method=method, std=std, eps=eps)  # [P, 1], [1] or scalar
    # std_batch is 0 where all rewards tie: the distance to V is then kept as it is.
    if method == "batch" and values is not None:
        everywhere = find_ties(
            rewards.detach().reshape(1, -1), is_scored.reshape(1, -1), tie_tolerance
        )  # [1]
        scale = scale.masked_fill(everywhere, 1.0)
    scaled = centred * scale
    is_silent = is_tied if _needs_a_group(method, values) else torch.zeros_like(is_tied)  # [P]
    # An unscored sample is 0 by definition, not by 0 / (std + eps), which is NaN where nothing is scored and eps is 0.
    return Advantages(
        values=scaled.masked_fill(is_silent[:, None] | ~is_scored, 0.0), is_tied=is_tied
    )


def _baseline(r: Tensor, is_scored: Tensor, values: Tensor | None) -> Tensor:
    """Return the baseline [P, 1]: the predicted value, or the mean of the scored samples."""
    if values is not None:
        return values.detach().double()[:, None]
    return mean_of_scored(r, is_scored)


def _scale(r: Tensor, is_scored: Tensor, *, method: Method, std: Std, eps: float) -> Tensor:
    """Return the factor that multiplies r - baseline: [P, 1], [1] over the batch, or a scalar."""
    if method == "group":
        return 1.0 / (deviation(r, is_scored, std=std, dim=1) + eps)
    if method in ("batch", "reinforce_plus_plus"):
        return 1.0 / (deviation(r.flatten(), is_scored.flatten(), std=std, dim=0) + eps)
    if method == "leave_one_out":
        n = is_scored.sum(dim=1, keepdim=True).double()  # [P, 1]
        # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1); a lone scored sample is a tie and silenced anyway.
        return n / (n - 1).clamp(min=1)
    return torch.ones((), dtype=torch.float64, device=r.device)


def _needs_a_group(method: Method, values: Tensor | None) -> bool:
    return values is None or method == "group"


def _check(rewards: Tensor, method: Method, values: Tensor | None) -> None:
    if rewards.ndim != 2:
        raise ValueError(
            f"rewards must have shape [P, G], got {list(rewards.shape)}; call to_groups first"
        )
    if method not in METHODS:
        raise ValueError(
            f"advantage method must be one of {', '.join(METHODS)}, got {method!r}; correct the parameter"
        )
    if method in OWN_BASELINE and values is not None:
        raise ValueError(
            f"values must be None for {method}, got a tensor; it has its own baseline, use mean_only or batch"
        )
    if values is not None:
        require_shape("values", values, rewards.shape[:1], "give one value per prompt")
    if rewards.shape[1] < 2 and _needs_a_group(method, values):
        raise ValueError(
            f"group size must be at least 2 for {method} advantages, got {rewards.shape[1]}; draw more samples"
        )
    refuse_infinite("rewards", rewards)
