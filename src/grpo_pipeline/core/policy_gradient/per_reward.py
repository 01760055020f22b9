"""Turn rewards by component, each [P, G], into advantages [P, G], always in float64."""

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.spread import Std, check_statistics
from grpo_pipeline.core.policy_gradient.whitening import standard_scores
from grpo_pipeline.core.rewards import check_components
from grpo_pipeline.core.types import Advantages


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
    check_statistics(std, eps, tie_tolerance)
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
        summed = standard_scores(summed / total, teaches, scope="batch", std=std, eps=eps / total)
    return Advantages(values=summed, is_tied=is_tied)
