"""Score the samples with a reference policy, and move that after the policy."""

from typing import Any

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.reference import ReferenceUpdate, update_reference
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import ReferenceScores, Rollouts
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.scoring import scores_kl
from grpo_pipeline.pipelines.step.update import ends_batch
from grpo_pipeline.tasks.base import Task


def score_reference(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    batch: Any,
    rollouts: Rollouts,
    temperature: float,
) -> ReferenceScores:
    """Return what the reference policy says about the samples; empty where the update computes an exact KL itself."""
    if state.reference is None or (algorithm.pays_exact_kl and scores_kl(task)):
        return ReferenceScores()
    with network_precision(state):
        return task.score_reference(state.reference, batch, rollouts, temperature=temperature)


def move_reference(
    algorithm: AlgorithmParams, next_state: TrainState, update_epoch: int, stops: bool = False
) -> TrainState:
    """Move the reference in its own rhythm: it follows batches, so that only the last update epoch of one moves it."""
    kl = algorithm.paid_kl
    assert kl is not None
    rhythm = kl.reference.model_dump(include={"every_steps", "decay"})
    rule = ReferenceUpdate(kl.reference.update, **rhythm)
    if next_state.reference is not None and ends_batch(algorithm, update_epoch, stops):
        update_reference(next_state.reference, next_state.policy, rule, next_state.step + 1)
    return next_state


PART = StepPart(
    is_in=lambda algorithm: algorithm.paid_kl is not None,
    rows={
        # log-probabilities of the same actions [P, G, L]
        "after_reward": (
            (
                "reward",
                "reference",
                score_reference,
                "algorithm task state batch rollouts temperature",
            ),
        ),
    },
)

MOTION = StepPart(
    is_in=lambda algorithm: (
        algorithm.paid_kl is not None and algorithm.paid_kl.reference.update != "frozen"
    ),
    rows={
        "after_update": (
            ("", "next_state", move_reference, "algorithm next_state update_epoch stops?"),
        ),
    },
)
