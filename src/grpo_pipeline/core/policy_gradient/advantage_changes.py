"""Change advantages after the comparison: keep the best, bound, charge a penalty, weigh prompts."""

import math
from dataclasses import replace

from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.rewards import refuse_infinite
from grpo_pipeline.core.types import Advantages


def keep_top(advantages: Advantages, rewards: Tensor, *, ratio: float) -> Advantages:
    """Silence all but the best share of each group, after normalisation: A = 0 outside the ceil(ratio * n) highest rewards.

    n counts the scored samples of the group (not NaN), so that at least one of them is kept. Among samples of equal reward
    the one with the lower index g goes first. What is kept is not normalised again: A no longer sums to 0, and with the best
    kept only, every remaining A pushes up.

    Args:
        advantages: values [P, G] or [P, G, L].
        rewards: [P, G], what the samples are ranked by, NaN where not scored.
        ratio: share of the scored samples to keep, in (0, 1].

    Returns:
        The same with fewer values; ``is_tied`` is unchanged.

    Raises:
        ValueError: for shapes that differ, an infinite reward, or a ratio outside (0, 1].
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio must be within (0, 1], got {ratio}; use 1 to keep every sample")
    require_shape("rewards", rewards, advantages.values.shape[:2], "give one each")
    refuse_infinite("rewards", rewards)
    is_scored = ~rewards.isnan()
    order = (
        rewards.detach()
        .double()
        .masked_fill(~is_scored, -math.inf)
        .argsort(dim=1, descending=True, stable=True)
    )
    # 0.07 * 100 is 7.000000000000001 in float64 and must keep 7 (test_keep_top_counts_shares_that_are_not_exact_in_binary).
    kept = (ratio * is_scored.sum(dim=1, keepdim=True).double() - 1e-9).ceil().clamp(min=1.0)
    # The argsort of an order gives the rank of each sample, [P, G]; kept is [P, 1].
    is_top = (order.argsort(dim=1) < kept) & is_scored
    is_silent = along(~is_top, advantages.values)  # [P, G] or [P, G, 1]
    return replace(advantages, values=advantages.values.masked_fill(is_silent, 0.0))


def clip_advantages(advantages: Advantages, *, largest: float) -> Advantages:
    """Bound each advantage: A' = min(max(A, -largest), largest).

    Dividing by the small deviation of a group makes its one odd sample weigh as much as a batch; the bound keeps its sign.

    Args:
        advantages: values [P, G] or [P, G, L].
        largest: largest absolute value, above 0, in units of the advantage.

    Raises:
        ValueError: for a bound that is not above 0.
    """
    if not largest > 0:
        raise ValueError(
            f"the largest advantage must be above 0, got {largest}; leave the bound out for none"
        )
    return replace(advantages, values=advantages.values.clamp(-largest, largest))


def subtract_penalty(advantages: Advantages, penalty: Tensor, is_scored: Tensor) -> Advantages:
    """Charge each sample for what it costs beyond the mean of its group, after normalisation.

        A'[p, g] = A[p, g] - (c[p, g] - mean_g c),   mean_g over scored samples,   exactly 0 where not scored

    For advantages that no penalty on the total could reach, because they are made of the components (``per_reward_advantages``).
    The penalty is not divided by a deviation, so that it stays proportional to what it measures, and is felt in tied groups, too.

    Args:
        advantages: values [P, G].
        penalty: [P, G], finite where scored, in units of the advantage.
        is_scored: bool [P, G].

    Returns:
        The same with other values; ``is_tied`` is unchanged, as it speaks of the rewards.

    Raises:
        ValueError: for a wrong shape.
    """
    for name, given in (("penalty", penalty), ("is_scored", is_scored)):
        require_shape(name, given, advantages.values.shape, "give one each")
    c = penalty.detach().double().masked_fill(~is_scored, 0.0)
    # c - mean_g c over scored samples: [P, G] - [P, 1].
    excess = c - c.sum(dim=1, keepdim=True) / is_scored.sum(dim=1, keepdim=True).clamp(min=1)
    return replace(advantages, values=advantages.values - excess.masked_fill(~is_scored, 0.0))


def apply_prompt_weights(advantages: Advantages, weights: Tensor) -> Advantages:
    """Scale each prompt's advantages, after normalisation: a factor on the rewards would cancel in the z-score.

    Args:
        advantages: values [P, G] or [P, G, L].
        weights: [P], finite and at least 0.

    Raises:
        ValueError: for a wrong shape, or a weight that is negative or not finite (names the prompt).
    """
    require_shape("prompt weights", weights, advantages.values.shape[:1], "give one each")
    is_bad = ~(weights.isfinite() & (weights >= 0))
    if bool(is_bad.any()):
        row = int(is_bad.nonzero()[0])
        raise ValueError(
            f"prompt weights must be finite and >= 0, got {float(weights[row])} for prompt {row}; correct them"
        )
    return replace(
        advantages, values=advantages.values * along(weights.detach().double(), advantages.values)
    )


def along(x: Tensor, values: Tensor) -> Tensor:
    """Return x, of prompts [P] or samples [P, G], with further axes of size 1 for values [P, G] or [P, G, L]."""
    return x.reshape(*x.shape, *[1] * (values.ndim - x.ndim))
