"""Tiny trainings of two arms that may begin, and what they yield."""

from typing import Any

from tiny import tiny

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.training import at_once
from grpo_pipeline.pipelines.training.at_once import make_ready
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.runs.executor import ExecutorParams

ARMS = ("supervised", "grpo")
CLOCKS = ("seconds", "_per_second", "memory_mb", "_ms")


def ready(name: str, arm: str, executor_params: ExecutorParams, task: Any = None, **changes: Any) -> at_once.Training:
    made, seed = tiny(name), 5
    task, data = task or made.make_task(), made.make_data()
    algorithm = made.algorithm_params(arm)
    training = made.training_params(**{"epochs": 2, "checkpoint_every_steps": 2, "log_every_steps": 1} | changes)
    state = build_state(algorithm, training, seed, task, data)
    sections = {"algorithm": f"{name}.{arm}.algorithm", "training": f"{name}.training", "task": name}
    return make_ready(algorithm, training, "never", executor_params, task, data, state, NoCheckpoint("nowhere"), {}, sections)


def trained(trainings: list[at_once.Training]) -> dict[str, tuple[list[dict[str, Any]], Any]]:
    """Return arm -> its metric rows without clocks, and its last checkpoint."""
    found = {}
    for training in trainings:
        pieces = list(at_once.train(training))
        rows = [row for some, _ in pieces for row in some]
        timeless = [{name: x for name, x in row.items() if not name.endswith(CLOCKS)} for row in rows]
        found[training.arm] = (timeless, [saved for _, saved in pieces if saved is not False][-1])
    return found
