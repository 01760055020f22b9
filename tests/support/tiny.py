"""The parts that the tiny tasks share: ``tiny(task)`` is the module of a task, its parameters are the committed smoke ones."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines import parameter_merge as replacing
from grpo_pipeline.runs.executor import ExecutorParams

CONF = Path(__file__).resolve().parents[2] / "conf"
SERIAL = ExecutorParams(kind="serial", workers=None, address=None, cpus=1, gpus=0)
AT_ONCE = SERIAL.model_copy(update={"kind": "processes", "workers": 2})
MODULES = {"attention": "tiny_attention", "dialogue": "tiny_talk", "molecules": "tiny_chemist"}


def tiny(task: str) -> Any:
    """Return the module that makes a tiny ``task``: ``make_task``, ``make_data``, ``algorithm_params``, ``training_params``."""
    return import_module(MODULES[task])


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Merge nested mappings, as Kedro's soft merge does; a schedule, and what has another method, is replaced as a whole."""
    merged = dict(base)
    for name, value in change.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict) and "start" not in value
        nested = nested and value.get("method", base[name].get("method")) == base[name].get("method")
        merged[name] = merge(base[name], value) if nested else value
    return merged


def constant(value: float) -> dict[str, Any]:
    return {"kind": "constant", "start": value}


@cache
def _sections(task: str) -> dict[str, Any]:
    name = f"{task}/parameters_training.yml"
    base, smoke = (yaml.safe_load((CONF / env / name).read_text()) for env in ("base", "smoke"))
    return merge(base[task], smoke[task])


class Sections:
    """The sections of a task's parameters, with changes."""

    def __init__(self, task: str) -> None:
        self.task = task

    def section(self, name: str, **changes: Any) -> dict[str, Any]:
        section = _sections(self.task)[name]
        return replacing.merge({name: section}, {name: changes})[name] if name == "model" else merge(section, changes)

    def training_params(self, **changes: Any) -> TrainingParams:
        return TrainingParams.model_validate(self.section("training", **changes))

    def algorithm_params(self, arm: str = "grpo", **changes: Any) -> AlgorithmParams:
        return AlgorithmParams.model_validate(merge(self.section(arm)["algorithm"], changes))
