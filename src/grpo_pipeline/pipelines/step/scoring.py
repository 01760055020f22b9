"""Score the stored actions under the present policy."""

from typing import Any, TypeGuard

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.tasks.base import ScoresKl, Task


def score_actions(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    experience: Experience,
    update_epoch: int,
) -> Scores:
    """Return what the present policy says about the stored actions, with its graph.

    The first update epoch back-propagates into the encoder; later ones reuse its features (``encoder_refresh: once``) or encode
    again (``every_epoch``).
    """
    rollouts, temperature = experience.rollouts, experience.temperature
    with network_precision(state):
        context = _context_of_epoch(task, state, experience, update_epoch, training)
        if algorithm.pays_exact_kl and scores_kl(task):
            return task.score_with_kl(
                state.policy, context, rollouts, reference=state.reference, temperature=temperature
            )
        return task.score(state.policy, context, rollouts, temperature=temperature)


def scores_kl(task: Task) -> TypeGuard[ScoresKl]:
    """Say whether the task has ``score_with_kl``; also of a task that is wrapped in another."""
    return hasattr(task, "score_with_kl")


def _context_of_epoch(
    task: Task,
    state: TrainState,
    experience: Experience,
    update_epoch: int,
    training: TrainingParams,
) -> Any:
    if update_epoch == 0:
        return experience.context
    if training.encoder_refresh == "every_epoch":
        return task.encode(state.policy, experience.prompts)
    return task.detach(experience.context)
