"""Plan which places of a batch are taken by stored groups, and store new ones."""

from dataclasses import fields, replace

import numpy as np

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.training.stored_groups import split_groups
from grpo_pipeline.pipelines.step.experience import NOTHING_REPLAYED, Experience, Replayed


def plan_batch(
    algorithm: AlgorithmParams, state: TrainState, rows: np.ndarray
) -> tuple[np.ndarray, Replayed]:
    """Put the prompts of stored groups in the place of the last fresh ones; returns the rows [P] and the groups.

    The draw is a function of the buffer and (seed, step), so that a resumed run replays the same.
    """
    if algorithm.replay is None or state.replay is None:
        return rows, NOTHING_REPLAYED
    wanted = int(algorithm.replay.share * len(rows))
    generator = step_generator(state.generator_seed, state.step, stream=Stream.REPLAY)
    groups = tuple(state.replay.draw(wanted, step=state.step, generator=generator))
    positions = tuple(range(len(rows) - len(groups), len(rows)))
    planned = rows.copy()
    planned[list(positions)] = [group.row for group in groups]
    return planned, Replayed(groups, positions)


def remember(
    state: TrainState, experience: Experience, rows: np.ndarray, replayed: Replayed
) -> None:
    """Store the step's fresh groups that taught something; the buffer of the state is changed in place."""
    if state.replay is None:
        return
    fresh = [p for p in range(len(rows)) if p not in replayed.positions]
    rollouts = experience.rollouts
    parts = {field.name: getattr(rollouts, field.name) for field in fields(rollouts)}
    sampled = replace(
        rollouts, **{name: part[fresh] for name, part in parts.items() if part is not None}
    )
    signal = experience.advantages.values.abs().flatten(1).mean(1)[fresh]
    groups = split_groups(
        sampled,
        rows[fresh].tolist(),
        signal=signal,
        step=state.step,
        temperature=experience.temperature,
    )
    state.replay.add(groups)


def replay_metrics(step: int, experience: Experience, replayed: Replayed) -> dict[str, float]:
    """Return how many groups were replayed and how far the policy had moved from them; empty without any."""
    if not replayed.positions or experience.importance is None:
        return {}
    weights = experience.importance[list(replayed.positions)]
    return {
        "replay/groups": float(len(replayed.positions)),
        "replay/importance_mean": float(weights.mean()),
        "replay/age_steps": float(np.mean([step - group.step for group in replayed.groups])),
    }
