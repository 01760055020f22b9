"""Predict the reward of a prompt: a baseline of its samples, and a term of the loss that teaches it."""

from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.value_loss import value_loss
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.pipelines.step.denominators import denominator_of
from grpo_pipeline.pipelines.step.experience import Experience, mean_returns
from grpo_pipeline.pipelines.step.part import StepPart
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
            "advantage.baseline must be group and losses.value null for a policy without a value head, got one that reads "
            "values; change them, or give the policy a value head"
        )
    return scores.values


def value_term(
    algorithm: AlgorithmParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the loss of the predicted values.

    Raises:
        ValueError: of a policy that predicts none.
    """
    params = algorithm.losses.value
    assert params is not None
    if scores.values is None:
        raise ValueError(
            "losses.value must be null for a policy without a value head, got a value; take it away"
        )
    old = experience.values if params.clip is not None else None
    returns, counted = mean_returns(scores, experience), denominator_of(experience, "value")
    return {"value": value_loss(scores.values, returns, old, params.clip, denominator=counted)}


def count_returns(algorithm: AlgorithmParams, task: Task, experience: Experience) -> Tensor:
    """Count the prompts of which a sample was scored."""
    return (~experience.rewards.total.nanmean(1).isnan()).sum().double()


# Read by a baseline, and by a value loss that stays near them.
BASELINE = StepPart(
    is_in=lambda algorithm: (
        algorithm.advantage.baseline == "value"
        or (algorithm.losses.value is not None and algorithm.losses.value.clip is not None)
    ),
    rows={
        # the reward that is expected of each prompt: [P]
        "after_reward": (
            ("advantage", "values", predict_values, "task state context rollouts temperature"),
        ),
    },
)

PART = StepPart(
    is_in=lambda algorithm: algorithm.losses.value is not None,
    rows={
        "loss": (("loss", "value_term", value_term, "algorithm scores experience"),),
    },
    counts={"value": count_returns},
)
