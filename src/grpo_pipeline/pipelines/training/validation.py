"""Measure a policy on the validation split."""

from typing import Any

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.tasks.base import Task


def validate(
    task: Task, data: Any, state: TrainState, training: TrainingParams
) -> dict[str, float]:
    """Return the task's own metrics of the validation rows, with the noise of the run's seed."""
    return task.validate(
        state.policy,
        data,
        task.rows(data, "val"),
        seed=state.generator_seed,
        n_samples=training.validation_samples,
    )
