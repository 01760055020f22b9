"""Let the decisions teach of which the policy was least sure (docs/algorithms.md)."""

from typing import Any

import torch

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.uncertain_decisions import keep_uncertain
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Advantages, Rollouts
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.tasks.base import Task


@torch.no_grad()
def silence_sure_decisions(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    context: Any,
    rollouts: Rollouts,
    temperature: float,
    advantages: Advantages,
) -> Advantages:
    """Score the samples once more for the entropy of each decision, and keep the advantages [P, G, L] of the largest.

    Raises:
        ValueError: for a task whose ``score`` gives no entropy of each decision.
    """
    surrogate = algorithm.losses.policy
    assert surrogate is not None
    assert surrogate.top_entropy is not None
    with network_precision(state):
        entropies = task.score(
            state.policy, task.detach(context), rollouts, temperature=temperature
        ).entropies
    if entropies is None:
        raise ValueError(
            f"losses.policy.top_entropy must be null for the task {task.name}, got {surrogate.top_entropy}; its score gives no "
            "entropy of each decision (Scores.entropies)"
        )
    return keep_uncertain(advantages, entropies, rollouts.is_valid, share=surrogate.top_entropy)


PART = StepPart(
    is_in=lambda algorithm: (
        algorithm.losses.policy is not None and algorithm.losses.policy.top_entropy is not None
    ),
    rows={
        "after_advantage": (
            (
                "advantage",
                "advantages",
                silence_sure_decisions,
                "algorithm task state context rollouts temperature advantages",
            ),
        ),
    },
)
