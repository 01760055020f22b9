"""Compare each sample, or decision, with its own group, or with the predicted value of its prompt."""

from typing import Any

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.advantage_changes import (
    apply_prompt_weights,
    clip_advantages,
    keep_top,
)
from grpo_pipeline.core.types import Advantages, Rewards, Rollouts
from grpo_pipeline.tasks.base import Task


def compute_advantages(
    algorithm: AlgorithmParams,
    task: Task,
    replicated: Any,
    rewards: Rewards,
    rollouts: Rollouts,
    values: Tensor | None = None,
) -> Advantages:
    """Compare the samples as the arm says, then weigh the prompts: a normalisation would cancel their weights."""
    params = algorithm.advantage
    advantages = params.compare(rewards, rollouts, values)  # [P, G], or [P, G, L] of decisions
    if params.clip is not None:
        advantages = clip_advantages(advantages, largest=params.clip)
    if params.top_k_ratio < 1:
        advantages = keep_top(advantages, rewards.total, ratio=params.top_k_ratio)
    weights = task.prompt_weights(replicated)  # [P]
    return advantages if weights is None else apply_prompt_weights(advantages, weights)
