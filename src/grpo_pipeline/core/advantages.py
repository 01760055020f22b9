"""Turn rewards [P, G] into advantages [P, G], always in float64.

How this differs from the papers: a group that ties is exactly 0 (the papers divide its round-off by std + eps), and a
NaN reward is a sample that was not scored: it leaves the statistics and gets advantage 0.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core.types import Advantages

Method = Literal["group", "leave_one_out", "mean_only", "batch"]
Std = Literal["sample", "population"]
METHODS = ("group", "leave_one_out", "mean_only", "batch")


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

    ``std_batch`` is taken over all scored rewards of the batch. With ``values`` the predicted reward V[p] takes the place of
    mean_g. A group ties where ``max - min <= tie_tolerance + max(tie_tolerance, 4 ulp of the input type) * max|r|``; its
    row is exactly 0, except that ``mean_only`` and ``batch`` with ``values`` keep r - V, which a tie does not blur.

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
    _check(rewards, method, std, values)
    r = rewards.detach().double()
    is_scored = ~r.isnan()
    is_tied = _find_ties(rewards.detach(), is_scored, tie_tolerance)
    centred = (r - _baseline(r, is_scored, values)).masked_fill(~is_scored, 0.0)
    scaled = centred * _scale(r, is_scored, method=method, std=std, eps=eps)
    is_silent = is_tied if _needs_a_group(method, values) else torch.zeros_like(is_tied)
    return Advantages(values=scaled.masked_fill(is_silent[:, None], 0.0), is_tied=is_tied)


def apply_prompt_weights(advantages: Advantages, weights: Tensor) -> Advantages:
    """Scale each prompt's advantages, after normalisation: a factor on the rewards would cancel in the z-score.

    Args:
        advantages: values [P, G].
        weights: [P], finite and at least 0.

    Raises:
        ValueError: for a wrong shape, or a weight that is negative or not finite (names the prompt).
    """
    if weights.shape != advantages.values.shape[:1]:
        raise ValueError(f"prompt weights must have shape [{len(advantages.values)}], got {list(weights.shape)}; give one each")
    is_bad = ~(weights.isfinite() & (weights >= 0))
    if bool(is_bad.any()):
        row = int(is_bad.nonzero()[0])
        raise ValueError(f"prompt weights must be finite and >= 0, got {float(weights[row])} for prompt {row}; correct them")
    return replace(advantages, values=advantages.values * weights.detach().double()[:, None])


def _baseline(r: Tensor, is_scored: Tensor, values: Tensor | None) -> Tensor:
    """Return the baseline [P, 1]: the predicted value, or the mean of the scored samples."""
    if values is not None:
        return values.detach().double()[:, None]
    return r.nansum(dim=1, keepdim=True) / is_scored.sum(dim=1, keepdim=True).clamp(min=1)


def _scale(r: Tensor, is_scored: Tensor, *, method: Method, std: Std, eps: float) -> Tensor:
    """Return the factor that multiplies r - baseline, [P, 1] or a scalar."""
    if method == "group":
        return 1.0 / (_nanstd(r, is_scored, std=std, dim=1) + eps)
    if method == "batch":
        return 1.0 / (_nanstd(r.flatten(), is_scored.flatten(), std=std, dim=0) + eps)
    if method == "leave_one_out":
        n = is_scored.sum(dim=1, keepdim=True).double()
        # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1); a lone scored sample is a tie and silenced anyway.
        return n / (n - 1).clamp(min=1)
    return torch.ones((), dtype=torch.float64, device=r.device)


def _nanstd(r: Tensor, is_scored: Tensor, *, std: Std, dim: int) -> Tensor:
    n = is_scored.sum(dim=dim, keepdim=True)
    mean = r.nansum(dim=dim, keepdim=True) / n.clamp(min=1)
    squares = (r - mean).masked_fill(~is_scored, 0.0).square().sum(dim=dim, keepdim=True)
    return (squares / (n - int(std == "sample")).clamp(min=1)).sqrt()


def _find_ties(rewards: Tensor, is_scored: Tensor, tolerance: float) -> Tensor:
    """Find groups whose scored rewards agree up to rounding of their own dtype; a group without any score is no tie."""
    r = rewards.double()
    infinity = float("inf")
    low = r.masked_fill(~is_scored, infinity).amin(dim=1)
    high = r.masked_fill(~is_scored, -infinity).amax(dim=1)
    ulps = 4 * torch.finfo(rewards.dtype).eps if rewards.is_floating_point() else 0.0
    size = torch.maximum(low.abs(), high.abs())
    return (high - low <= tolerance + max(tolerance, ulps) * size) & is_scored.any(dim=1)


def _needs_a_group(method: Method, values: Tensor | None) -> bool:
    return values is None or method == "group"


def _check(rewards: Tensor, method: Method, std: Std, values: Tensor | None) -> None:
    if rewards.ndim != 2:
        raise ValueError(f"rewards must have shape [P, G], got {list(rewards.shape)}; call to_groups first")
    if method not in METHODS:
        raise ValueError(f"advantage method must be one of {', '.join(METHODS)}, got {method!r}; correct the parameter")
    if std not in ("sample", "population"):
        raise ValueError(f"std must be 'sample' or 'population', got {std!r}; correct the parameter")
    if method == "leave_one_out" and values is not None:
        raise ValueError("values must be None for leave_one_out, got a tensor; it has its own baseline, use mean_only or batch")
    if values is not None and values.shape != rewards.shape[:1]:
        raise ValueError(f"values must have shape [{rewards.shape[0]}], got {list(values.shape)}; give one value per prompt")
    if rewards.shape[1] < 2 and _needs_a_group(method, values):
        raise ValueError(f"group size must be at least 2 for {method} advantages, got {rewards.shape[1]}; draw more samples")
    is_infinite = rewards.isinf().any(dim=1)
    if bool(is_infinite.any()):
        row = int(is_infinite.nonzero()[0])
        raise ValueError(
            f"rewards must be finite or NaN (not scored), got an infinite one for prompt {row}; use NaN or a penalty"
        )
