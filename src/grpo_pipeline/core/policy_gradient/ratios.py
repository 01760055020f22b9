"""Units of the importance ratio: one decision, the whole sample, or the sample's average decision.

A new ratio is one function in ``UNITS`` and, if it is not per decision, one line in ``counted_units``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from grpo_pipeline.core.policy_gradient.names import RatioLevel, choose

# Largest log-ratio that is exponentiated: exp(20) = 4.9e8 is far outside of any clip, and finite, squared too. verl's number.
LOG_RATIO_BOUND = 20.0


class Units(NamedTuple):
    """Log-probabilities per unit [P, G, U] (U = L or 1), their distance l - o to the rollout policy, and which are valid.

    ``is_selected``, bool [P, G, L], is what ``Surrogate.select`` has found.
    """

    logprobs: Tensor
    log_ratio: Tensor
    is_valid: Tensor
    is_selected: Tensor | None = None

    @property
    def ratio(self) -> Tensor:
        """Return r = exp(l - o), [P, G, U], bounded as ``bounded_ratio`` says; exactly 1 where invalid."""
        return bounded_ratio(self.log_ratio)


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """Return exp(min(x, 20)): finite, and without gradient above the bound.

    In float32 exp(89) is infinite, and its product with the gradient 0 of a clip is NaN. A joint or summed log-ratio is bounded
    after it was summed. NaN stays NaN, so that ``hybrid_loss.check_finite`` finds it.
    Source: verl, ``compute_policy_loss_vanilla``. It bounds at -20, too, where the ratio is 2e-9; here it goes on to 0, which
    overflows nowhere and is what libraries without a bound compute.
    """
    return log_ratio.clamp(max=LOG_RATIO_BOUND).exp()


def decision_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take each decision for itself: r = exp(l - o), [P, G, L]. Source: PPO, arXiv 1707.06347, section 3."""
    return Units(_kept(logprobs, is_valid), _kept(logprobs - old_logprobs, is_valid), is_valid)


def joint_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take the whole sample as one unit: r = exp(sum over valid L of (l - o)), [P, G, 1]; the likelihood of a set of points."""
    each = decision_units(logprobs, old_logprobs, is_valid)
    return Units(
        each.logprobs.sum(-1, keepdim=True),  # [P, G, 1]
        each.log_ratio.sum(-1, keepdim=True),  # [P, G, 1]
        is_valid.any(-1, keepdim=True),  # [P, G, 1]
    )


def sequence_units(logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor) -> Units:
    """Take the geometric mean over the sample: r = exp(sum_L m * (l - o) / sum_L m), [P, G, 1].

    It is no likelihood ratio; it keeps ratios of long and short samples on one scale. Source: GSPO, arXiv 2507.18071,
    equation 7.
    """
    joint = joint_units(logprobs, old_logprobs, is_valid)
    length = is_valid.sum(-1, keepdim=True).clamp(min=1)  # [P, G, 1]
    return Units(joint.logprobs / length, joint.log_ratio / length, joint.is_valid)


UNITS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Units]] = {
    "decision": decision_units,
    "joint": joint_units,
    "sequence": sequence_units,
}


def counted_units(is_valid: Tensor, ratio_level: RatioLevel) -> Tensor:
    """Return which units a reduction counts, bool [P, G, L] or [P, G, 1].

    A joint sample counts once. A ``sequence`` ratio stands for each of its decisions, as in TRL: per_sequence then is the
    mean over rows, and per_decision weighs a row by its length.
    """
    return is_valid.any(dim=-1, keepdim=True) if ratio_level == "joint" else is_valid


def importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, is_valid: Tensor, *, level: RatioLevel
) -> Tensor:
    """Return the ratio of the present policy to the rollout policy: [P, G, L] per decision, else [P, G, 1].

    Has the gradient of ``logprobs`` and none of ``old_logprobs``.

    Raises:
        ValueError: for an unknown level.
    """
    return choose(UNITS, level, "ratio_level")(logprobs, old_logprobs.detach(), is_valid).ratio


def per_unit(advantages: Tensor) -> Tensor:
    """Return advantages of samples [P, G] or of decisions [P, G, L] beside units: [P, G, 1] or [P, G, L]."""
    return advantages if advantages.ndim == 3 else advantages.unsqueeze(-1)


def _kept(x: Tensor, is_valid: Tensor) -> Tensor:
    return x.masked_fill(~is_valid, 0.0)
