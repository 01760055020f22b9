"""Build the start of an arm, and the worked example of its first step."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.optim import build_optimizer
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.reference import frozen_copy, load_reference
from grpo_pipeline.core.training.replay_buffer import ReplayBuffer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Advantages, Rewards, Rollouts
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.order import rows_of_step, steps_per_epoch
from grpo_pipeline.pipelines.training.shown_samples import add_rewards
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.testing import check_quickly


def build_state(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> TrainState:
    """Return the start of an arm; every arm of a seed starts from the same weights.

    Raises:
        ValueError: if the learning rates do not name the task's parameter groups, the task cannot do what the algorithm asks
            for, or stored groups would be replayed on prompts that have changed. Also as ``Task.check_data``.
    """
    task.check_data(data)
    task.check_algorithm(algorithm)
    if algorithm.replay is not None and not task.repeats_prompts:
        raise ValueError(
            f"replay must be null where a row of {task.name} is not the same prompt in every batch (repeats_prompts), got a "
            "value; stored actions belong to the prompt that they were drawn for: leave replay out"
        )
    policy = task.build_policy(seed)
    groups = task.parameter_groups(policy)
    rates = training.optimizer.learning_rates
    missing = sorted(set(groups) - set(rates))
    if missing:
        raise ValueError(
            f"{task.name}.training.optimizer.learning_rates must name {sorted(groups)}, got nothing for {missing}; add them"
        )
    for unknown in sorted(set(rates) - {*groups, *task.components}):
        near = get_close_matches(unknown, task.components, n=1)
        raise ValueError(
            f"{task.name}.training.optimizer.learning_rates must name components of the task ({', '.join(task.components)}), "
            f"got {unknown!r}; {f'did you mean {near[0]}?' if near else 'remove it'}"
        )
    optimizer = build_optimizer(
        {name: (parameters, rates[name]) for name, parameters in groups.items()},
        weight_decay=training.optimizer.weight_decay,
    )
    whole = training.epochs * steps_per_epoch(len(task.rows(data, "train")), training.batch_size)
    total = min(whole, training.max_steps or whole)
    replay = (
        None
        if algorithm.replay is None
        else ReplayBuffer(algorithm.replay.capacity, algorithm.replay.max_age_steps)
    )
    return TrainState(
        policy,
        optimizer,
        _build_reference(algorithm, policy),
        step=0,
        epoch=0,
        generator_seed=seed,
        total_steps=total,
        replay=replay,
        precision=training.precision,
    )


def build_probe_state(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> TrainState:
    """Return the start of an arm for its probe, once the task has kept the cheap half of its contract with it.

    The start is not changed, nor any random stream (``testing.check_quickly``).

    Raises:
        TaskContractError: naming the method, what must hold, what was got, and the remedy.
    """
    state, shown = (
        build_state(algorithm, training, seed, task, data),
        data_of_arm(algorithm, task, data),
    )
    rows = rows_of_step(task.rows(shown, "train"), 0, batch_size=training.batch_size, seed=seed)
    with network_precision(state):
        check_quickly(
            task,
            shown,
            state.policy,
            rows=rows,
            learns=algorithm.losses.policy is not None,
            has_supervised=algorithm.losses.supervised is not None,
        )
    return state


def pick_probe_batch(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> Any:
    """Return the first training batch, or its first micro-batch: the probe runs in one piece."""
    data = data_of_arm(algorithm, task, data)
    rows = rows_of_step(task.rows(data, "train"), 0, batch_size=training.batch_size, seed=seed)[
        : training.micro_batch_size
    ]
    return make_training_batch(task, data, rows, seed=seed, step=0)


def tabulate_probe(
    task: Task, data: Any, batch: Any, rollouts: Rollouts, rewards: Rewards, advantages: Advantages
) -> pd.DataFrame:
    """Return the probe's worked example: one row per sample with its reward components, reward and advantage."""
    return add_rewards(task.tabulate(data, batch, rollouts), rewards, advantages)


def data_of_arm(algorithm: AlgorithmParams, task: Task, data: Any) -> Any:
    """Return the data that an arm may see: the truth is among them for ``proposal: oracle`` alone."""
    return task.with_oracle(data) if algorithm.proposal == "oracle" else data


def _build_reference(algorithm: AlgorithmParams, policy: nn.Module) -> nn.Module | None:
    """Return the policy that the KL is measured to: a copy of the start, or weights of the user's."""
    kl = algorithm.paid_kl
    if kl is None:
        return None
    path = kl.reference.path
    return frozen_copy(policy) if path is None else load_reference(Path(path), policy)
