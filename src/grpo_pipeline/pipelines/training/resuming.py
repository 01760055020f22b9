"""Resume a training from its checkpoint: refuse changed parameters that decide the weights, and report the other changes.

How a run is executed may change, and so may its length. Schedules are functions of the step and of the *present* number of steps:
training longer continues them at the step where the checkpoint stands, on the curve of the longer run.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_pipeline.core.agreement import decisive, digest_of
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import LENGTH, TrainingParams
from grpo_pipeline.core.schedules import Schedule
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.snapshot import restore
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.runs.code_version import code_version
from grpo_pipeline.tasks.base import Task

logger = logging.getLogger(__name__)


def run_parameters(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, data: Any, *, seed: int
) -> dict[str, Any]:
    """Return what a checkpoint must agree on to go on: algorithm, loop without its length, the task's own, seed."""
    return {
        "algorithm": decisive(algorithm),
        "training": decisive(training, without=LENGTH),
        "task": task.fingerprint(data, draws=algorithm.proposal != "none"),
        "seed": seed,
    }


def run_digest(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, data: Any, *, seed: int
) -> str:
    """Return the digest of ``run_parameters``: the ``config_digest`` of the run's checkpoints."""
    return digest_of(run_parameters(algorithm, training, task, data, seed=seed))


def resumed(
    state: TrainState,
    checkpoint: Checkpoint | NoCheckpoint,
    *,
    resume: str,
    parameters: Mapping[str, Any],
    sections: Mapping[str, str],
    frozen_reference: str | None,
) -> TrainState:
    """Return the state to train from: the start, or the checkpoint with ``resume: auto``; says what has changed since.

    Args:
        state: the start.
        checkpoint: the last one, or that there is none.
        resume: "never" or "auto".
        parameters: ``run_parameters`` of this run.
        sections: their first keys -> the names of the sections in the configuration.
        frozen_reference: digest of the weights of this run's reference; None where it follows the policy.

    Raises:
        ValueError: if ``resume`` is neither.
        CheckpointError: if the checkpoint belongs to another run, or is further than this one goes.
    """
    if resume not in ("never", "auto"):
        raise ValueError(
            f"resume must be never or auto, got {resume!r}; use --params resume=auto to go on from a checkpoint"
        )
    if resume == "never" or isinstance(checkpoint, NoCheckpoint):
        return state
    going_on = restore(
        state, checkpoint, parameters=parameters, names=sections, frozen_reference=frozen_reference
    )
    where = f"checkpoint {checkpoint.folder}" if checkpoint.folder else "the checkpoint"
    if checkpoint.code != (here := code_version()):
        said = (
            ", ".join(f"{name} {version}" for name, version in checkpoint.code.items())
            or "unknown code"
        )
        now = ", ".join(f"{name} {version}" for name, version in here.items())
        logger.warning(
            "%s was written by %s, this is %s; the run goes on, and may end elsewhere than unbroken",
            where,
            said,
            now,
        )
    before = int(checkpoint.progress.get("total_steps", going_on.total_steps))
    if before != going_on.total_steps:
        logger.info("%s: %s", where, _length_sentence(going_on, before, parameters, sections))
    return going_on


def _length_sentence(
    state: TrainState, before: int, parameters: Mapping[str, Any], sections: Mapping[str, str]
) -> str:
    """Return what another length means for the weights."""
    moving = [
        path
        for key in ("algorithm", "training")
        for path in _moving(sections.get(key, key), parameters[key])
    ]
    if not moving:
        return f"the run now has {state.total_steps} steps instead of {before}; no schedule depends on it"
    return (
        f"the run now has {state.total_steps} steps instead of {before}; from step {state.step} on {', '.join(moving)} follow "
        f"those of {state.total_steps} steps, so the weights are not those of a run that had {state.total_steps} from the start"
    )


def _moving(path: str, values: Any) -> Iterator[str]:
    """Yield the paths of the schedules that depend on the number of steps."""
    if not isinstance(values, Mapping):
        return
    if values.keys() == Schedule.__dataclass_fields__.keys():
        if values["kind"] != "constant":
            yield path
        return
    for key, inner in values.items():
        yield from _moving(f"{path}.{key}", inner)
