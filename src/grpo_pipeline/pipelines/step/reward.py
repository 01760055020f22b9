"""Measure the named parts of the reward, and add them up."""

from typing import Any

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.types import Rewards, Rollouts
from grpo_pipeline.tasks.base import Task


def compute_rewards(task: Task, replicated: Any, rollouts: Rollouts, outcomes: Any) -> Rewards:
    """Measure the named reward components and add them up with their weights."""
    parts, weights = task.reward(replicated, rollouts, outcomes)
    return combine_rewards(parts, weights)
