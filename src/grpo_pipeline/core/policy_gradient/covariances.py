"""Measure by which decisions the entropy falls: where a probable action has a large advantage."""

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.ratios import per_unit


def covariances(logprobs: Tensor, advantages: Tensor, is_valid: Tensor) -> Tensor:
    """Return each decision's share of the covariance of advantage and log-probability.

        c = (A - mean A) * (l - mean l),   means over valid decisions

    The entropy of a softmax policy changes by the negative sum of c in a small step.
    Source: arXiv 2505.22617. How ours differs: l is that of the rollout policy, so that the shares are those of the
    whole batch for all of its micro-batches and updates; they are those of the present policy at the first update.

    Args:
        logprobs: [P, G, L], as drawn; what is not valid is not read.
        advantages: [P, G] or [P, G, L].
        is_valid: bool [P, G, L].

    Returns:
        float64 [P, G, L], detached; 0 where not valid.
    """
    count = is_valid.sum().clamp(min=1)
    apart = []
    for x in (per_unit(advantages).expand(is_valid.shape), logprobs):
        kept = x.detach().double().masked_fill(~is_valid, 0.0)  # [P, G, L]
        apart.append((kept - kept.sum() / count).masked_fill(~is_valid, 0.0))
    return apart[0] * apart[1]


def find_largest(values: Tensor, is_candidate: Tensor, *, share: float, of: int) -> Tensor:
    """Find the largest candidates, as many as a share of all decisions, rounded down, and at least one where there is any.

    Of equal values the earlier decision goes first: nothing is drawn.

    Args:
        values: [P, G, L].
        is_candidate: bool [P, G, L].
        share: of all decisions, in (0, 1).
        of: number of all decisions.

    Returns:
        bool [P, G, L].
    """
    # 0.29 * 100 is 28.999999999999996 in float64 and must be 29.
    wanted = max(1, int(share * of + 1e-9))
    ranked = values.masked_fill(~is_candidate, -torch.inf).flatten()
    order = ranked.argsort(descending=True, stable=True)[:wanted]
    is_selected = torch.zeros_like(ranked, dtype=torch.bool)
    is_selected[order] = True
    return is_selected.view_as(is_candidate) & is_candidate
