"""Measure how far the policy has moved from the one that sampled."""

from typing import Any

from grpo_pipeline.core.diagnostics.ratio_statistics import ratio_statistics
from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.core.policy_gradient.value_loss import explained_variance
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.experience import Experience, mean_returns


def diagnose(params: PolicyLoss, scores: Scores, experience: Experience) -> dict[str, Any]:
    """Return how far the policy has moved from the rollouts, what the surrogate selects, and what the values explain."""
    rollouts = experience.rollouts
    found: dict[str, Any] = ratio_statistics(
        scores.logprobs.detach(),
        rollouts.logprobs,
        experience.advantages.values,
        rollouts.is_valid,
        params,
    )
    if experience.selected is not None:
        found["policy/selected"] = experience.selected.sum() / rollouts.is_valid.sum()
    if scores.values is not None:
        found["value/explained_variance"] = explained_variance(
            scores.values.detach(), mean_returns(scores, experience)
        )
    return found
