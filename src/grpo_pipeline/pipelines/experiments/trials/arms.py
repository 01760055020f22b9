"""Resolve arms that YAML describes by their differences into all parameters, and check these before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.errors import OF_AN_OLDER_VERSION, value_sentence, without_tags
from grpo_pipeline.migrate import is_old
from grpo_pipeline.pipelines.experiments.trials.trial_params import (
    ArmParams,
    GridParams,
    StageParams,
)
from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.tasks import find_task

Sections = Mapping[str, type[BaseModel]]

ALGORITHM, TRAINING = "algorithm", "training"

FIXED = ("data",)  # what the examples were prepared with: read by the task, set by no arm

UNKNOWN = (
    "extra_forbidden",
    "unexpected_keyword_argument",
)  # a schedule is a plain dataclass, which has another word


@dataclass(frozen=True)
class ResolvedArm:
    """An arm whose parameters are complete.

    Attributes:
        name: of the arm.
        description: base, changes and rule, as they were given.
        sections: section -> model: ``algorithm``, ``training`` and those of the task.
    """

    name: str
    description: ArmParams
    sections: Mapping[str, BaseModel]

    @property
    def algorithm(self) -> AlgorithmParams:
        """Return the parameters of the arm's objective."""
        found = self.sections[ALGORITHM]
        assert isinstance(found, AlgorithmParams)
        return found

    @property
    def training(self) -> TrainingParams:
        """Return the parameters of the training loop."""
        found = self.sections[TRAINING]
        assert isinstance(found, TrainingParams)
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """Return all parameters of the arm as JSON values, except those that no arm may set."""
        return {
            name: section.model_dump(mode="json")
            for name, section in self.sections.items()
            if name not in FIXED
        }


def resolve_arms(
    params: GridParams,
    parameters: Mapping[str, Any],
    *,
    task: str,
    models: Sections,
    section: str = "compare",
) -> dict[str, ResolvedArm]:
    """Return the arms, the control first, each with its sections merged and validated.

    Args:
        params: the arms.
        parameters: the task's parameters as they are in YAML: ``<base>.algorithm``, ``training``, the shared sections.
        task: name of the task, for messages.
        models: section of the task -> its model; ``algorithm`` and ``training`` come with every task.
        section: path of the parameters that describe the arms, for messages.

    Raises:
        ValueError: a section is invalid. The sentence names the arm and the path of the parameter.
    """
    asked = [name for name, arm in params.present.items() if arm.baseline is not None]
    if asked and not find_task(task).baselines:
        raise ValueError(
            f"{task}.{section}.arms.{asked[0]}.baseline must be null for a task that fits no baselines, got "
            f"{params.present[asked[0]].baseline!r}; drop the arm"
        )
    common: dict[str, type[BaseModel]] = {ALGORITHM: AlgorithmParams, TRAINING: TrainingParams}
    known = common | dict(models)
    return {
        name: resolve_arm(
            arm, parameters, name=name, models=known, path=f"{task}.{section}.arms.{name}"
        )
        for name, arm in params.present.items()
    }


def resolve_arm(
    arm: ArmParams, parameters: Mapping[str, Any], *, name: str, models: Sections, path: str
) -> ResolvedArm:
    """Merge an arm onto its base and validate every section; see ``resolve_arms``."""
    bases = [
        key
        for key, section in parameters.items()
        if isinstance(section, Mapping) and ALGORITHM in section
    ]
    if arm.base not in bases:
        raise ValueError(
            f"{path}.base must be one of {', '.join(bases)}, got {arm.base!r}; name an arm of conf/base"
        )
    settable = [section for section in models if section not in FIXED]
    if unknown := sorted(arm.set.keys() - set(settable)):
        remedy = meant(unknown[0], settable)
        raise ValueError(
            f"{path}.set must name sections among {', '.join(settable)}, got {unknown[0]!r}; {remedy}"
        )
    base = parameters[arm.base]
    raw = {section: base.get(section, parameters.get(section)) for section in models}
    if arm.baseline is not None:  # nothing begins with what a stage ends with
        raw |= {section: None for section in models if issubclass(models[section], StageParams)}
    merged = merge(raw, arm.set)
    sections = {
        section: validate(models[section], merged[section], path=f"{path}.set.{section}")
        for section in models
        if merged[section] is not None
    }
    return ResolvedArm(name, arm, sections)


def validate(model: type[BaseModel], values: Any, *, path: str) -> BaseModel:
    """Return the section as its model.

    Raises:
        ValueError: one sentence with the path of the first value that is wrong.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        loc = [*without_tags(map(str, first["loc"]), values)]
        raise ValueError(sentence(path, loc, first, values)) from error


def sentence(path: str, loc: Sequence[str], problem: Any, values: Any) -> str:
    """Write the problem with a value of an arm, and its remedy."""
    where = ".".join([path, *loc])
    if problem["type"] in UNKNOWN:
        remedy = meant(loc[-1], names_at(values, loc[:-1]))
        remedy = OF_AN_OLDER_VERSION if is_old(where) else remedy
        return f"{where} must be a parameter of this project, got an unknown name; {remedy}"
    if problem["type"] == "missing":
        return f"{where} must be given, got nothing; add it"
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {text}"
    return value_sentence(where, problem["type"], text, value=repr(problem["input"]))


def names_at(values: Any, loc: Sequence[str]) -> list[str]:
    """Return the keys of the mapping at a path."""
    for part in loc:
        values = values.get(part, {}) if isinstance(values, Mapping) else {}
    return [str(name) for name in values] if isinstance(values, Mapping) else []


def meant(name: str, names: Any) -> str:
    """Suggest the known name that is closest to a misspelt name, or to remove it."""
    close = get_close_matches(name, [other for other in names if other != name], n=1)
    return f"did you mean {close[0]}?" if close else "remove it or correct its name"
