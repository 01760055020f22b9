"""The model that reads each section of the parameters, and how a task is built from them."""

import copy
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import torch
from pydantic import BaseModel
from tiny_chemist import make_data
from tiny_talk import make_examples

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.arms import arms_of
from grpo_pipeline.pipelines.params import sections as declared
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks import BUILT_IN, find_task
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.dialogue.build import build_task, check_arms
from grpo_pipeline.tasks.molecules.build import build_task as build_molecules
from grpo_pipeline.tasks.molecules.build import check_arms as check_molecule_arms
from grpo_pipeline.tasks.molecules.diffusion.params import Diffusion

ROOT = Path(__file__).resolve().parents[2]
TALK_ARMS = ("warm_start", "supervised", "reinforce", "grpo")
GRAPH_ARMS = ("warm_start", "supervised", "grpo", "eager")


def models_of(task: str, parameters: dict[str, Any] | None = None) -> dict[str, type[BaseModel]]:
    """Return section -> model. A section may be null where its type allows it; the model reads the others."""
    spec = find_task(task).with_stages_of((parameters or {}).get(task))
    types = declared(spec, arms_of(spec, parameters or {}))
    return {name: next(part for part in get_args(type_) or (type_,) if part is not NoneType) for name, type_ in types.items()}


@cache
def _read(conf: Path, env: str) -> dict[str, Any]:
    return ReplacingConfigLoader(str(conf), env=env, **CONFIG_LOADER_ARGS)["parameters"]


def read_parameters(conf: Path, env: str) -> dict[str, Any]:
    """Return the parameters of an environment as Kedro resolves them; the files are read once."""
    return copy.deepcopy(_read(conf, env))


TASKS = {task: models_of(task, read_parameters(ROOT / "conf", "base")) for task in BUILT_IN}


def sections(conf: Path, env: str, task: str = "attention") -> dict[str, Any]:
    """Return a task's sections, those of its stages and of the arms that are trained as ``<arm>.algorithm``."""
    parameters = read_parameters(conf, env)[task]
    trained = {*parameters.get("arms", find_task(task).arms), *find_task(task).with_stages_of(parameters).stages}
    parameters = {name: part for name, part in parameters.items() if "algorithm" not in (part or {}) or name in trained}
    flat = {name: section for name, section in parameters.items() if "algorithm" not in (section or {}) and name != "arms"}
    arms = {name: section for name, section in parameters.items() if "algorithm" in (section or {})}
    return flat | {f"{arm}.{name}": part for arm, section in arms.items() for name, part in section.items()}


def read_sections(conf: Path, env: str, task: str) -> dict[str, Any]:
    """Return a task's sections as their models; each section has one, and each model a section."""
    models, found = models_of(task, read_parameters(conf, env)), sections(conf, env, task)
    assert found.keys() == models.keys()
    return {name: None if section is None else models[name].model_validate(section) for name, section in found.items()}


def build_attention(read: dict[str, Any]) -> Any:
    """Return the task; its policy is built as well, which refuses what does not fit."""
    task = AttentionTask(read["model"], read["reward"], read["supervised_loss"], read["data"].image_size, torch.device("cpu"))
    check_learning_rates(task, read["training"])
    return task


def build_dialogue(read: dict[str, Any]) -> Any:
    """Return the task, its arms checked."""
    parts = (read[name] for name in ("prompt", "replies", "reward", "reward_pool", "supervised_loss"))
    # Nothing of the examples is read but the stories of a retriever.
    task = build_task(read["language_model"], *parts, execution=read["training"], examples=make_examples())
    check_arms(task, [read[f"{arm}.algorithm"] for arm in TALK_ARMS if f"{arm}.algorithm" in read])
    check_learning_rates(task, read["training"], read["warm_start.training"])
    return task


def build_molecule_task(read: dict[str, Any]) -> Any:
    """Return the task on a few molecules, its arms checked."""
    diffusion = Diffusion(*(read[name] for name in ("noise", "denoiser", "trajectory", "supervised_loss")))
    sampled = (read[name] for name in ("prompt", "reward", "reward_pool", "sampling"))
    task = build_molecules(diffusion, *sampled, make_data(), execution=read["training"])
    own = {"eager": read["eager.trajectory"]}
    check_molecule_arms(task, [(read[f"{arm}.algorithm"], own.get(arm, read["trajectory"])) for arm in GRAPH_ARMS])
    check_learning_rates(task, *(read[stage] for stage in ("training", "warm_start.training", "eager.training")))
    return task


def check_learning_rates(task: Any, *stages: TrainingParams) -> None:
    """Assert that each stage names a learning rate for every part of the policy."""
    groups = task.parameter_groups(task.build_policy(0))
    for stage in stages:
        assert groups.keys() <= stage.optimizer.learning_rates.keys()


BUILDERS = {"attention": build_attention, "dialogue": build_dialogue, "molecules": build_molecule_task}
