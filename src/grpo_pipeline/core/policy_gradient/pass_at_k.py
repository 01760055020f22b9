"""Reward a policy for the best of k samples: each sample has what it adds to the best of every k of its group.

How this differs from the paper: it draws exactly k samples; here a group of G samples is used for all of its subsets of k.
"""

from math import comb

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.types import Advantages


def pass_at_k_advantages(rewards: Tensor, *, k: int, tie_tolerance: float = 1e-8) -> Advantages:
    """Score each sample by what it adds to the best of k, averaged over all subsets of its group that hold it.

        A_i = k * mean over S with i in S, |S| = k of (max of r in S - max of r in S without i)

    The mean over a group of A_i * grad log p(x_i) is an unbiased gradient of E[max of k rewards], which is pass@k where rewards
    are 0 or 1: the best of the others does not depend on sample i. With k = G only the best sample teaches, by its distance to
    the second; no sample is pushed down. It is computed in sorted order, without listing subsets:

        A_i = k / C(n - 1, k - 1) * sum over ranks j below i of C(j - 1, k - 2) * (r_i - r_(j))

    Source: leave-one-out over k samples, arXiv 2503.19595; over subsets of a group: pass@k policy optimisation, arXiv 2505.15201.

    Args:
        rewards: [P, G], NaN where a sample was not scored.
        k: samples of which the best counts, 2..G; 1 would be ``leave_one_out``.
        tie_tolerance: as in ``compute_advantages``.

    Returns:
        Values float64 [P, G], at least 0; exactly 0 in a group that ties, where not scored, and in a group with fewer than k
        scored samples.

    Raises:
        ValueError: for a k outside 2..G, an infinite reward, or a wrong shape.
    """
    plain = compute_advantages(rewards, method="mean_only", tie_tolerance=tie_tolerance)
    group_size = rewards.shape[1]
    if not 2 <= k <= group_size:
        raise ValueError(
            f"k must be within 2 and the group size {group_size} for pass_at_k advantages, got {k}; draw more samples or lower k"
        )
    r = rewards.detach().double()
    is_scored = ~r.isnan()
    # Unscored samples rank above all others, so that they are below none.
    ranked = r.masked_fill(~is_scored, torch.inf).sort(dim=1).values  # [P, G]
    gains = (r.nan_to_num()[:, :, None] - ranked[:, None, :]).clamp(min=0.0)  # [P, G, G]
    # Subsets of k - 1 others whose best has rank j: C(j - 1, k - 2), as a share of all.
    best_at = r.new_tensor([float(comb(j, k - 2)) for j in range(group_size)])  # [G]
    subsets_of = r.new_tensor([float(comb(max(n - 1, 0), k - 1)) for n in range(group_size + 1)])
    subsets = subsets_of[is_scored.sum(dim=1)]  # [P]
    values = k * (gains @ best_at) / subsets.clamp(min=1.0)[:, None]  # [P, G]
    is_silent = plain.is_tied[:, None] | ~is_scored | (subsets == 0)[:, None]  # [P, G]
    return Advantages(values=values.masked_fill(is_silent, 0.0), is_tied=plain.is_tied)
