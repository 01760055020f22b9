"""The surrogate losses: one number per unit, whose gradient is that of REINFORCE while the policy has not moved.

A new algorithm is one function in ``SURROGATES`` and its name and row in ``algorithms.py``; callers do not change.
Letters: l log-probability of the unit now, r its ratio to the rollout policy, A its advantage.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.algorithms import (
    LossOptions,
)
from grpo_pipeline.core.policy_gradient.ratios import Units

Surrogate = Callable[[Units, Tensor, LossOptions], Tensor]


def reinforce_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -A * l. Source: Williams, 1992. The options are not used."""
    return -advantages * units.logprobs


def grpo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -min(min(r, delta) * A, clip(r, 1 - low, 1 + high) * A), for A < 0 at most dual_clip * |A|.

    Source: PPO, arXiv 1707.06347, equation 7; low != high: DAPO, arXiv 2503.14476, section 3.1; delta: INTELLECT-2,
    arXiv 2505.07291; dual_clip: arXiv 1912.09729; on the sequence ratio: GSPO, arXiv 2507.18071, equation 5. Without
    delta or dual_clip the loss of A < 0 grows with r without bound.
    """
    ratio = units.ratio  # r: [P, G, U]
    # delta matters where A < 0 alone: above 1 + high a positive A is bounded by the clip.
    free = ratio if options.delta is None else ratio.clamp(max=options.delta)
    loss = -torch.minimum(
        free * advantages, ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high) * advantages
    )
    if options.dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -options.dual_clip * advantages), loss)


def cispo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -stop(min(r, ratio_cap)) * A * l.

    The weight is capped and carries no gradient, so that no unit ever falls silent. Source: CISPO, arXiv 2506.13585.
    The clip bounds are not used.
    """
    return -units.ratio.detach().clamp(max=options.ratio_cap) * advantages * units.logprobs


def sapo_surrogate(units: Units, advantages: Tensor, options: LossOptions) -> Tensor:
    """Return -A * sigmoid(tau * (r - 1)) * 4 / tau, tau = tau_positive where A > 0, tau_negative elsewhere.

    The gradient fades smoothly as r leaves 1 on either side. Source: SAPO, arXiv 2511.20347. The clip bounds
    are not used.
    """
    positive = torch.full_like(advantages, options.tau_positive)
    tau = positive.masked_fill(advantages <= 0, options.tau_negative)  # [P, G, 1] or [P, G, L]
    return -advantages * torch.sigmoid(tau * (units.ratio - 1.0)) * 4.0 / tau


SURROGATES: Mapping[str, Surrogate] = {
    "reinforce": reinforce_surrogate,
    "ppo": grpo_surrogate,
    "grpo": grpo_surrogate,
    "dr_grpo": grpo_surrogate,
    "dapo": grpo_surrogate,
    "bnpo": grpo_surrogate,
    "gspo": grpo_surrogate,
    "cispo": cispo_surrogate,
    "sapo": sapo_surrogate,
}
