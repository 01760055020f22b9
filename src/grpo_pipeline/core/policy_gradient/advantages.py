"""Turn rewards [P, G] into advantages [P, G], or credits of decisions [P, G, L] into theirs, always in float64.

How this differs from the papers: a group that ties is exactly 0 (the papers divide its round-off by std + eps), and a
NaN reward is a sample that was not scored: it leaves the statistics and gets advantage 0. For advantages per decision,
against a value baseline, see ``returns.generalized_advantages``.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core.groups import require_shape
from grpo_pipeline.core.rewards import check_components, refuse_infinite
from grpo_pipeline.core.types import Advantages, Credits

Method = Literal["group", "leave_one_out", "mean_only", "batch", "reinforce_plus_plus"]
Std = Literal["sample", "population"]
Scope = Literal["group", "batch"]
METHODS = ("group", "leave_one_out", "mean_only", "batch", "reinforce_plus_plus")
# Methods whose baseline is made of the group, and so goes beside no predicted value.
OWN_BASELINE = ("leave_one_out", "reinforce_plus_plus")
# Spread, absolute and relative, below which the values of a scope are rounding and nothing else.
WHITEN_TOLERANCE = 1e-12


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
    _check_statistics(std, eps, tie_tolerance)
    _check(rewards, method, values)
    r = rewards.detach().double()
    is_scored = ~r.isnan()
    # Ties are judged in the type of the rewards, because its rounding is what a tie may differ by.
    is_tied = _find_ties(rewards.detach(), is_scored, tie_tolerance)  # [P]
    centred = (r - _baseline(r, is_scored, values)).masked_fill(~is_scored, 0.0)
    measured = centred if method == "reinforce_plus_plus" else r
    scale = _scale(measured, is_scored, method=method, std=std, eps=eps)  # [P, 1], [1] or scalar
    # std_batch is 0 where all rewards tie: the distance to V is then kept as it is.
    if method == "batch" and values is not None:
        everywhere = _find_ties(
            rewards.detach().reshape(1, -1), is_scored.reshape(1, -1), tie_tolerance
        )  # [1]
        scale = scale.masked_fill(everywhere, 1.0)
    scaled = centred * scale
    is_silent = is_tied if _needs_a_group(method, values) else torch.zeros_like(is_tied)  # [P]
    # An unscored sample is 0 by definition, not by 0 / (std + eps), which is NaN where nothing is scored and eps is 0.
    return Advantages(
        values=scaled.masked_fill(is_silent[:, None] | ~is_scored, 0.0), is_tied=is_tied
    )


def per_reward_advantages(
    components: Mapping[str, Tensor],
    weights: Mapping[str, float],
    *,
    std: Std = "sample",
    eps: float = 1e-4,
    tie_tolerance: float = 1e-8,
    whiten: bool = True,
) -> Advantages:
    """Score each named component within its own group, add the scores up, then whiten the sum over the batch.

        z_k = (r_k - mean_g) / (std_g + eps),   S = sum_k w_k * z_k,   A = (S - mean_batch) / (std_batch + eps)

    Source: GDPO, arXiv 2601.05242; TRL calls it ``multi_objective_aggregation="normalize_then_sum"``. The scores of
    a weighted sum of rewards lose a component of small spread beside one of large spread; here each component weighs as its
    weight says.

    A component that ties in a group contributes exactly 0 there, and a NaN is a sample that this component did not score. A row
    teaches where at least one weighted component scored it and does not tie in its group. mean_batch and std_batch are taken
    over the rows that teach, of all prompts given here; all other rows are exactly 0 and whitening does not move them. (TRL
    counts scored rows of tied groups as zeros, so that there the scale of A depends on how many groups tie.) Within a group each
    z_k sums to 0, hence S and A do too, and mean_batch is round-off.

    Args:
        components: name -> [P, G], detached, NaN where the component did not score the sample.
        weights: name -> weight >= 0, the same names; a component of weight 0 is left out altogether.
        std: "sample" divides by n - 1 (as TRL does), "population" by n.
        eps: added to both standard deviations: in units of the component, then in units of S.
        tie_tolerance: absolute and relative spread below which a component counts as tied in a group.
        whiten: False returns S.

    Returns:
        Values as above; ``is_tied`` is True where every weighted component that scored the prompt at all ties.

    Raises:
        ValueError: as ``rewards.check_components``, for a group of one, an unknown std, or a negative eps or tolerance.
    """
    check_components(components, weights)
    _check_statistics(std, eps, tie_tolerance)
    scored = {name: components[name] for name, weight in weights.items() if weight}
    size = next(iter(scored.values())).shape[1]
    if size < 2:
        raise ValueError(
            f"group size must be at least 2 for per_reward advantages, got {size}; draw more samples"
        )
    by_component = {
        name: compute_advantages(component, std=std, eps=eps, tie_tolerance=tie_tolerance)
        for name, component in scored.items()
    }
    # S = sum over the K components of w_k * z_k: [K, P, G] -> [P, G].
    summed = torch.stack(
        [weights[name] * component.values for name, component in by_component.items()]
    ).sum(dim=0)
    is_scored = torch.stack([~component.isnan() for component in scored.values()])  # [K, P, G]
    # is_tied_component: [K, P].
    is_tied_component = torch.stack([component.is_tied for component in by_component.values()])
    teaches = (is_scored & ~is_tied_component[:, :, None]).any(dim=0)  # [P, G]
    is_tied = is_tied_component.any(dim=0) & ~teaches.any(dim=1)  # [P]
    if whiten:
        # Both divided by the sum of the weights: the same quotient, and the size by which a tie is judged is that of one z.
        total = sum(weights.values())
        summed = _whiten(summed / total, teaches, scope="batch", std=std, eps=eps / total)
    return Advantages(values=summed, is_tied=is_tied)


def decision_advantages(
    credits: Credits,
    *,
    method: Method = "group",
    std: Std = "sample",
    eps: float = 1e-4,
    tie_tolerance: float = 1e-8,
) -> Advantages:
    """Score each decision against the same decision of the other samples of its group: ``compute_advantages`` per position.

    Decisions of a turn share its credit, and are compared with the same turn of the others, wherever it stands in them. A sample
    that has ended earlier counts with its credit of 0, so that the baseline of a decision knows nothing of it; with
    ``leave_one_out`` it is unbiased for samples of unequal length, too.

    Args:
        credits: of the samples, of K decisions or turns.
        method: the baseline and the scale; ``batch`` takes its deviation over all positions of the batch.
        std: as there.
        eps: as there.
        tie_tolerance: as there; a prompt ties where every position does.

    Returns:
        Values [P, G, L], 0 where no decision was taken.
    """
    n_prompts, group_size, length = credits.values.shape
    # Each position, or turn, of a prompt is a group: [P, G, K] -> [P * K, G].
    found = compute_advantages(
        credits.values.transpose(1, 2).reshape(n_prompts * length, group_size),
        method=method,
        std=std,
        eps=eps,
        tie_tolerance=tie_tolerance,
    )
    values = found.values.reshape(n_prompts, length, group_size).transpose(1, 2)  # [P, G, K]
    if credits.turns is not None:
        values = values.gather(2, credits.turns.clamp(min=0))  # [P, G, T] -> [P, G, L]
    return Advantages(
        values=values.masked_fill(~credits.is_taken, 0.0),
        is_tied=found.is_tied.reshape(n_prompts, length).all(dim=1),  # [P, K] -> [P]
    )


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


def whiten(
    values: Tensor, is_valid: Tensor, *, scope: Scope, eps: float, std: Std = "sample"
) -> Tensor:
    """Subtract the mean and divide by the standard deviation, over valid entries of one scope.

        (x - mean_scope) / (std_scope + eps),   exactly 0 where not valid

    A scope with a single valid entry, or whose valid entries agree up to rounding (a spread of 1e-12, absolute or relative, or
    4 ulp of their type), is exactly 0.

    Args:
        values: [P, ...], P prompts; entries that are not valid are not read and may be NaN.
        is_valid: bool, the same shape, True where an entry counts.
        scope: "group" takes mean and deviation over everything of one prompt, "batch" over everything given.
        eps: added to the standard deviation, in units of the values.
        std: "sample" divides by n - 1, "population" by n.

    Returns:
        float64, the same shape, detached.

    Raises:
        ValueError: for a wrong shape or name, a negative eps, or a valid entry that is not finite.
    """
    if scope not in ("group", "batch"):
        raise ValueError(
            f"whitening scope must be 'group' or 'batch', got {scope!r}; correct the parameter"
        )
    _check_statistics(std, eps, 0.0)
    if (
        values.ndim < 2
        or not values.is_floating_point()
        or is_valid.dtype != torch.bool
        or is_valid.shape != values.shape
    ):
        raise ValueError(
            "floating-point values and bool is_valid must share one shape [P, ...], got "
            f"{values.dtype} {list(values.shape)} and {is_valid.dtype} {list(is_valid.shape)}; give one flag per value"
        )
    # Padding may be NaN; a NaN that counts would spread over its whole scope.
    is_bad = is_valid & ~values.isfinite()
    if bool(is_bad.any()):
        place = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"values must be finite where valid, got {float(values[tuple(place)])} at {place}; mask or correct it"
        )
    return _whiten(values, is_valid, scope=scope, std=std, eps=eps)


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


def _whiten(values: Tensor, is_valid: Tensor, *, scope: Scope, std: Std, eps: float) -> Tensor:
    rows = len(values) if scope == "group" else 1
    mask = is_valid.reshape(rows, -1)  # [P, n] by group, [1, n] over the batch
    # Unread entries become NaN, which is how the statistics below know them.
    x = values.detach().masked_fill(~is_valid, math.nan).reshape(rows, -1)
    is_silent = _find_ties(x, mask, WHITEN_TOLERANCE)[:, None] | ~mask
    centred = x.double() - _baseline(x.double(), mask, None)
    whitened = centred / (_nanstd(x.double(), mask, std=std, dim=1) + eps)
    return whitened.masked_fill(is_silent, 0.0).reshape(values.shape)


def _baseline(r: Tensor, is_scored: Tensor, values: Tensor | None) -> Tensor:
    """Return the baseline [P, 1]: the predicted value, or the mean of the scored samples."""
    if values is not None:
        return values.detach().double()[:, None]
    return r.nansum(dim=1, keepdim=True) / is_scored.sum(dim=1, keepdim=True).clamp(min=1)


def _scale(r: Tensor, is_scored: Tensor, *, method: Method, std: Std, eps: float) -> Tensor:
    """Return the factor that multiplies r - baseline: [P, 1], [1] over the batch, or a scalar."""
    if method == "group":
        return 1.0 / (_nanstd(r, is_scored, std=std, dim=1) + eps)
    if method in ("batch", "reinforce_plus_plus"):
        return 1.0 / (_nanstd(r.flatten(), is_scored.flatten(), std=std, dim=0) + eps)
    if method == "leave_one_out":
        n = is_scored.sum(dim=1, keepdim=True).double()  # [P, 1]
        # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1); a lone scored sample is a tie and silenced anyway.
        return n / (n - 1).clamp(min=1)
    return torch.ones((), dtype=torch.float64, device=r.device)


def _nanstd(r: Tensor, is_scored: Tensor, *, std: Std, dim: int) -> Tensor:
    n = is_scored.sum(dim=dim, keepdim=True)  # [P, 1] along a group, [1] over the batch
    mean = r.nansum(dim=dim, keepdim=True) / n.clamp(min=1)
    squares = (r - mean).masked_fill(~is_scored, 0.0).square().sum(dim=dim, keepdim=True)
    return (squares / (n - int(std == "sample")).clamp(min=1)).sqrt()


def _find_ties(rewards: Tensor, is_scored: Tensor, tolerance: float) -> Tensor:
    """Find groups whose scored rewards agree up to rounding of their own dtype; a group without any score is no tie."""
    r = rewards.double()
    infinity = float("inf")
    low = r.masked_fill(~is_scored, infinity).amin(dim=1)  # [P]
    high = r.masked_fill(~is_scored, -infinity).amax(dim=1)  # [P]
    ulps = 4 * torch.finfo(rewards.dtype).eps if rewards.is_floating_point() else 0.0
    size = torch.maximum(low.abs(), high.abs())
    return (high - low <= tolerance + max(tolerance, ulps) * size) & is_scored.any(dim=1)


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


def _check_statistics(std: Std, eps: float, tie_tolerance: float) -> None:
    if std not in ("sample", "population"):
        raise ValueError(
            f"std must be 'sample' or 'population', got {std!r}; correct the parameter"
        )
    for name, value in (("eps", eps), ("tie_tolerance", tie_tolerance)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, got {value}; correct the parameter")
