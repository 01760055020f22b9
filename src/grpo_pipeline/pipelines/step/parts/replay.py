"""Put stored groups at the places of their prompts, weighed by how likely the present policy draws them (docs/algorithms.md)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.advantage_changes import along
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.replay_weights import importance_weights
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.training.stored_groups import merge_groups
from grpo_pipeline.core.types import Advantages, Rollouts
from grpo_pipeline.pipelines.step.experience import Replayed
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.tasks.base import Task


def nothing_replayed() -> Replayed:
    """Return an empty replay; the fold puts stored groups in its place."""
    return Replayed()


def replay_groups(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    context: Any,
    rollouts: Rollouts,
    replayed: Replayed,
    temperature: float,
) -> tuple[Rollouts, Tensor]:
    """Put stored groups at their places and weigh them by how likely the present policy is to draw them.

    The ratio of the update is taken to the policy at the start of this step, so that it is 1 there for stored groups, too; the
    step from the policy that drew them is the importance weight, [P, G], which is exactly 1 for fresh groups.
    """
    assert algorithm.replay is not None
    importance = torch.ones(rollouts.actions.shape[:2], device=rollouts.logprobs.device)  # [P, G]
    if not replayed.positions:
        return rollouts, importance
    merged = merge_groups(rollouts, replayed.groups, replayed.positions)
    with torch.no_grad(), network_precision(state):
        proximal = task.score(
            state.policy, task.detach(context), merged, temperature=temperature
        ).logprobs  # [P, G, L]
    # From the policy that drew a group (behaviour) to that at the start of this step (proximal): the importance weight.
    where = list(replayed.positions)
    importance[where] = importance_weights(
        proximal[where],
        merged.logprobs[where],
        merged.is_valid[where],
        cap=algorithm.replay.importance_cap,
    ).to(importance.dtype)
    # From there on: the ratio of the update, whose old policy is the proximal one.
    logprobs = merged.logprobs.clone()
    logprobs[where] = proximal[where]
    return replace(merged, logprobs=logprobs), importance


def weigh_samples(advantages: Advantages, importance: Tensor) -> Advantages:
    """Multiply the advantages, [P, G] or [P, G, L], by the importance weights of the samples."""
    weights = along(importance.double(), advantages.values)  # [P, G] or [P, G, 1]
    return replace(advantages, values=advantages.values * weights)


PART = StepPart(
    is_in=lambda algorithm: algorithm.replay is not None,
    rows={
        "alone": (("sample", "replayed", nothing_replayed, ""),),
        # how likely the policy is to draw a stored sample, beside how likely it was: [P, G]
        "after_sampling": (
            (
                "sample",
                "rollouts importance",
                replay_groups,
                "algorithm task state context rollouts replayed temperature",
            ),
        ),
        "after_advantage": (("advantage", "advantages", weigh_samples, "advantages importance"),),
    },
)
