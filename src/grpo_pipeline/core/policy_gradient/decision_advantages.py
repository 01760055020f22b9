"""Turn credits of decisions [P, G, L] into advantages [P, G, L], always in float64."""

from grpo_pipeline.core.policy_gradient.advantages import Method, compute_advantages
from grpo_pipeline.core.policy_gradient.spread import Std
from grpo_pipeline.core.types import Advantages, Credits


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
