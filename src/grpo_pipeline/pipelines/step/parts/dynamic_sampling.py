"""Draw groups again whose samples all earn the same: they teach nothing (DAPO, 2503.14476)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.sampling.dynamic import resample_tied
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.parts.credit import credit_decisions
from grpo_pipeline.pipelines.step.reward import compute_rewards
from grpo_pipeline.pipelines.step.sampling import decode_rollouts, draw_samples
from grpo_pipeline.tasks.base import Task


def dynamic_sampling(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
    replicated: Any,
    rollouts: Rollouts,
    temperature: float,
) -> tuple[Rollouts, Mapping[str, float]]:
    """Draw groups whose samples all earn the same again, a bounded number of times; returns what that has cost, too."""
    assert algorithm.dynamic_sampling is not None
    sampled, detached = rollouts, task.detach(context)

    def measure(drawn: Rollouts) -> Tensor:
        with torch.no_grad():
            outcomes = decode_rollouts(task, state, detached, drawn, replicated)
            rewards = compute_rewards(task, replicated, drawn, outcomes)
            if algorithm.credits_decisions:
                rewards = credit_decisions(
                    algorithm, task, state, detached, drawn, replicated, rewards
                )
        return algorithm.advantage.signal(rewards)

    def draw(attempt: int) -> tuple[Rollouts, Tensor]:
        drawn = draw_samples(
            algorithm, training, task, state, context, temperature=temperature, attempt=attempt
        )
        return drawn, measure(drawn)

    retries = algorithm.dynamic_sampling.max_retries
    changed, _, report = resample_tied(sampled, measure(sampled), draw=draw, max_retries=retries)
    groups = sampled.actions.shape[0]
    return changed, {
        "reward/ties_before_retries": report.tied_before / groups,
        "reward/retries": float(report.attempts),
    }


PART = StepPart(
    is_in=lambda algorithm: algorithm.dynamic_sampling is not None,
    rows={
        "after_sampling": (
            (
                "sample",
                "rollouts resampling",
                dynamic_sampling,
                "algorithm training task state context replicated rollouts temperature",
            ),
        ),
    },
)
