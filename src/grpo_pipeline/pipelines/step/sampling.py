"""Encode a batch, give its targets to each sample, draw samples and see what they lead to.

Random numbers come from generators that are seeded by (seed, step, attempt).
"""

from typing import Any

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.base import Task


def encode_batch(task: Task, state: TrainState, batch: Any) -> Any:
    """Encode the batch once per prompt; the graph stays attached for the supervised loss."""
    with network_precision(state):
        return task.encode(state.policy, batch)


def replicate_batch(training: TrainingParams, task: Task, batch: Any) -> Any:
    """Give every target of the batch a group axis, as views."""
    return task.replicate(batch, training.group_size)


def sample_rollouts(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
) -> tuple[Rollouts, float]:
    """Draw G samples per prompt from the arm's proposal, at the temperature of this step."""
    temperature = value_at(training.temperature, state.step, state.total_steps)
    return draw_samples(
        algorithm, training, task, state, context, temperature=temperature
    ), temperature


def decode_rollouts(
    task: Task, state: TrainState, context: Any, rollouts: Rollouts, replicated: Any
) -> Any:
    """Decode the samples once; rewards read the values, the supervised loss keeps the graph."""
    with network_precision(state):
        return task.decode(state.policy, context, rollouts, replicated)


def draw_samples(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
    *,
    temperature: float,
    attempt: int = 0,
) -> Rollouts:
    """Draw G samples per prompt with the noise of this step, and of this attempt at it.

    What a policy learns from an engine draws where the task has one (``parts.correction``).
    """
    places = (state.step, attempt) if attempt else (state.step,)
    stream = Stream.RETRIES if attempt else Stream.ROLLOUTS
    device = next(state.policy.parameters()).device
    by_engine = algorithm.proposal == "policy" and getattr(task, "engine", None) is not None
    with network_precision(state):
        return task.sample(
            state.policy,
            task.detach(context),
            training.group_size,
            temperature=temperature,
            proposal="engine" if by_engine else algorithm.proposal,
            generator=step_generator(state.generator_seed, *places, stream=stream, device=device),
        )
