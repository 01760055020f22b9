"""Predict the reward of a prompt: a baseline of its samples, and a term of the loss that teaches it."""

from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams, is_on
from grpo_pipeline.core.policy_gradient.value_loss import value_loss
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.pipelines.step.denominators import denominator_of
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.tasks.base import Task


def predict_values(
    task: Task, state: TrainState, context: Any, rollouts: Rollouts, temperature: float
) -> Tensor:
    """Return the values [P] at the time of the rollout, which a baseline or a clipped value loss reads.

    Raises:
        ValueError: for a policy that predicts none.
    """
    with torch.no_grad(), network_precision(state):
        scores = task.score(state.policy, task.detach(context), rollouts, temperature=temperature)
    if scores.values is None:
        raise ValueError(
            "advantage.baseline must be group and value_clip null for a policy without a value head, got one that reads values; "
            "change them, or give the policy a value head"
        )
    return scores.values


def value_term(
    algorithm: AlgorithmParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the loss of the predicted values, or nothing of a policy that predicts none.

    Raises:
        ValueError: if such a loss has a weight all the same.
    """
    if scores.values is None:
        if is_on(algorithm.value_weight):
            raise ValueError(
                "value_weight must be 0 for a policy without a value head, got a positive one; set it to 0"
            )
        return {}
    old = experience.values if algorithm.value_clip is not None else None
    returns, counted = mean_returns(scores, experience), denominator_of(experience, "value")
    return {
        "value": value_loss(scores.values, returns, old, algorithm.value_clip, denominator=counted)
    }


def mean_returns(scores: Scores, experience: Experience) -> Tensor:
    """Return the mean reward of each prompt, [P], in the precision of the scores."""
    return experience.rewards.total.nanmean(1).to(scores.logprobs.dtype)  # [P]
