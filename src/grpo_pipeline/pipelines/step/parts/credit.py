"""Tell each decision of a sample what it has contributed to the reward (docs/algorithms.md)."""

from typing import Any, cast

import torch

from grpo_pipeline.core.credit import Credit, credit_turns, kept_decisions
from grpo_pipeline.core.credit import credit_decisions as credited
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rewards, Rollouts
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.tasks.base import Task


def credit_decisions(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    context: Any,
    rollouts: Rollouts,
    replicated: Any,
    rewards: Rewards,
) -> Rewards:
    """Say what each decision has contributed, in the precision of the step."""
    with network_precision(state):
        return credit_samples(algorithm, task, state.policy, context, rollouts, replicated, rewards)


@torch.no_grad()
def credit_samples(
    algorithm: AlgorithmParams,
    task: Task,
    policy: Any,
    context: Any,
    rollouts: Rollouts,
    replicated: Any,
    measured: Rewards,
) -> Rewards:
    """Return the rewards with what each decision has contributed: all parts of the samples are measured in one call.

    What turns were paid is asked of the task alone: no part of a sample is measured.
    """
    if algorithm.advantage.credit == "to_go":
        return credit_turns(measured, *task.turn_rewards(rollouts, replicated))
    credit = cast(Credit, algorithm.advantage.credit)
    # kept: [M, L], the decisions that each of the M = L sub-samples keeps; of_subsets: [P, G, M], their rewards.
    kept = kept_decisions(credit, rollouts.actions.shape[2], device=rollouts.actions.device)
    of_subsets = task.subset_rewards(policy, task.detach(context), rollouts, replicated, kept=kept)
    return credited(measured, of_subsets, rollouts.is_valid, credit=credit)


PART = StepPart(
    is_in=lambda algorithm: algorithm.credits_decisions,
    rows={
        # what each decision has contributed: [P, G, L]
        "after_reward": (
            (
                "reward",
                "rewards",
                credit_decisions,
                "algorithm task state context rollouts replicated rewards",
            ),
        ),
    },
)
