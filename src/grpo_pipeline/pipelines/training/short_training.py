"""Train an arm for a few steps before an audit, because a fresh model may start with parts that are exactly 0."""

from typing import Any

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.pipelines.training.start import build_state, data_of_arm
from grpo_pipeline.tasks.base import Task


def train_steps(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    steps: int,
    *,
    seed: int,
    task: Task,
    data: Any,
) -> TrainState:
    """Build an arm's start and train it for ``steps`` batches, the first ones of its training."""
    state = build_state(algorithm, training, seed, task, data)
    runner = StepRunner(task, algorithm, training)
    with quiet_nodes():
        for _ in range(steps):
            state, _ = runner(state, pick_batch(algorithm, training, task, data, state))
    return state


def pick_batch(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    data: Any,
    state: TrainState,
    *,
    at_most: int | None = None,
) -> Any:
    """Return the batch of the state's step, the same as in training, or its first prompts."""
    data = data_of_arm(algorithm, task, data)
    rows = rows_of_step(
        task.rows(data, "train"),
        state.step,
        batch_size=training.batch_size,
        seed=state.generator_seed,
    )
    return make_training_batch(
        task, data, rows[:at_most], seed=state.generator_seed, step=state.step
    )
