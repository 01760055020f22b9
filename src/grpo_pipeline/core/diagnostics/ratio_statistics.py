"""Compute clipped shares, ratios and divergences of an update, for people to read; training does not use them."""

import torch
from torch import Tensor

from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate
from grpo_pipeline.core.policy_gradient.kl import unbounded_k3
from grpo_pipeline.core.policy_gradient.names import RatioLevel
from grpo_pipeline.core.policy_gradient.ratios import UNITS, per_unit


@torch.no_grad()
def ratio_statistics(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    surrogate: Surrogate,
) -> dict[str, float]:
    """Summarise how far the present policy has moved from the one that drew the rollouts.

    A unit is what the algorithm's ratio belongs to: a decision, or a row for ``joint`` and ``sequence``; of gmpo a decision.

    Args:
        logprobs: [P, G, L], present policy.
        old_logprobs: [P, G, L], as drawn.
        advantages: [P, G] or [P, G, L].
        is_valid: bool [P, G, L].
        surrogate: as in ``policy_loss``; says what its bounds do to a unit.

    Returns:
        ``policy/ratio_mean`` and ``policy/ratio_max`` over valid units (1 at the first update), at most exp(20);
        ``policy/clip_low``, ``policy/clip_high``: share of valid units whose gradient the clip removes; for cispo, whose
        cap removes none, ``policy/clip_high`` is the share of capped ratios; exactly 0 where the algorithm has no such bound
        (reinforce, sapo, vespo and kl_cov both, cispo the lower one);
        ``policy/clip_dual``, only where delta or dual_clip is set: share of valid units with A < 0 that it holds;
        ``policy/ess``: (sum r)^2 / (n * sum r^2), the effective share of the samples, in (0, 1];
        ``kl/rollout``: see ``rollout_kl``.

    Raises:
        ValueError: if no unit is valid.
    """
    new, old = logprobs.double(), old_logprobs.double()
    units = UNITS[surrogate.unit_level](new, old, is_valid)
    if not bool(units.is_valid.any()):
        raise ValueError(
            "at least one decision must be valid, got none; check the is_valid mask of the rollouts"
        )
    r = units.ratio[units.is_valid]  # [P, G, U] -> [n]
    a = per_unit(advantages).expand_as(units.log_ratio)[units.is_valid]  # [P, G, U] -> [n], as r
    # The effective share in units of the largest ratio, so that nothing under- or overflows.
    log_ratio = units.log_ratio[units.is_valid]  # [n]
    weights = (log_ratio - log_ratio.max()).exp()
    none = torch.zeros_like(r, dtype=torch.bool)
    held = {"low": none, "high": none} | surrogate.held(r, a)
    statistics = {
        "policy/ratio_mean": r.mean(),
        "policy/ratio_max": r.max(),
        **{f"policy/clip_{bound}": units.double().mean() for bound, units in held.items()},
        "policy/ess": weights.sum().square() / (weights.numel() * weights.square().sum()),
        "kl/rollout": rollout_kl(new, old, is_valid, level=surrogate.ratio_level),
    }
    # One transfer from the device for all of them.
    return dict(zip(statistics, torch.stack(list(statistics.values())).tolist(), strict=True))


@torch.no_grad()
def rollout_kl(
    logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor, *, level: RatioLevel
) -> Tensor:
    """Estimate KL(rollout policy || present policy), ``kl/rollout``: the mean of r - 1 - log r over valid units, in nats.

    Unbiased because the actions came from the rollout policy. For ``sequence`` it is taken per decision: a length-normalised
    ratio is no likelihood ratio. Not to be mixed up with ``kl/reference``, see ``kl.py``.

    Args:
        logprobs: [P, G, L], present policy.
        old_logprobs: [P, G, L], as drawn.
        is_valid: bool [P, G, L].
        level: that of the surrogate.

    Returns:
        A float64 scalar, at least 0.
    """
    of_likelihoods = UNITS["decision" if level == "sequence" else level]
    units = of_likelihoods(logprobs.double(), old_logprobs.double(), is_valid)
    return unbounded_k3(units.log_ratio[units.is_valid]).mean()
