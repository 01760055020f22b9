"""Resolve arms that YAML describes by their differences into all parameters, and check these before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.errors import value_sentence
from grpo_pipeline.pipelines.arms import NAME, merge
from grpo_pipeline.tasks import find_task

# Parameters of the comparison of many arms: ``<task>.compare``.


class ArmParams(BaseModel):
    """One arm: a base arm, and what differs from it.

    Attributes:
        base: the arm ``<task>.<base>.algorithm`` that it starts from.
        set: section -> changes. Mappings are merged, everything else replaces, ``null`` too (``arms.merge``).
        rule: the rule of the prediction rows by which the arm is judged.
        baseline: what a user would try instead (a name of ``<task>.evaluation.baselines``): it is fitted on a trial's training
            split, and nothing else is trained; ``rule`` is its name then. Of the base it has the data and the task.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base: str
    set: dict[str, dict[str, Any]] = {}
    rule: str = "policy"
    baseline: str | None = Field(default=None, exclude_if=lambda name: name is None)

    @model_validator(mode="before")
    @classmethod
    def _judge_a_baseline_by_its_rows(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("baseline") is not None:
            return {"rule": given["baseline"], **given}
        return given


class GridParams(BaseModel):
    """Which arms are trained with which seeds; what ``<task>.compare`` and ``<task>.cross_validation`` share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seeds: tuple[int, ...] = Field(
        min_length=1, description="of weights, data order and samples; data and split stay"
    )
    control: str = Field(description="the arm that every other arm is compared with")
    arms: dict[str, ArmParams | None] = Field(
        description="by name; null leaves out an arm of another environment"
    )
    keep: Literal["predictions", "weights"] = Field(
        description="weights: the final weights of each trial are stored, too"
    )

    @property
    def present(self) -> dict[str, ArmParams]:
        """The arms that are not null, the control first."""
        arms = {name: arm for name, arm in self.arms.items() if arm is not None}
        return {self.control: arms[self.control]} | arms

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [name for name, arm in self.arms.items() if arm is not None]
        if bad := [name for name in names if not NAME.fullmatch(name)]:
            raise ValueError(
                f"arms must be named by small letters, digits and _, got {bad[0]!r}; rename it"
            )
        if self.control not in names:
            raise ValueError(
                f"control must be one of the arms {', '.join(names)}, got {self.control!r}; name one of them"
            )
        if len(names) < 2:
            raise ValueError(
                f"arms must hold the control and at least one more, got {', '.join(names)}; add an arm"
            )
        return self

    @model_validator(mode="after")
    def _check_seeds(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(
                f"seeds must be different numbers of at least 0, got {list(self.seeds)}; correct them"
            )
        return self


class CompareParams(GridParams):
    """How the arms of a grid are compared (``<task>.compare``)."""

    split: Literal["val", "test"] = Field(
        description="the split that is scored: val to choose by, test to report on what was chosen"
    )
    primary_metrics: tuple[str, ...] = Field(
        min_length=1, description="the metrics whose p-values are corrected together"
    )
    baseline_rules: tuple[str, ...] = Field(
        description="other rules whose rows stand in the second table"
    )


class StageParams(BaseModel):
    """A stage before the arms (``<task>.<stage>``): its algorithm and its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: AlgorithmParams
    training: TrainingParams


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
        """The loop."""
        found = self.sections[TRAINING]
        assert isinstance(found, TrainingParams)
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters of the arm as JSON values; without what no arm may set."""
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
        section: where the arms are described, for messages.

    Raises:
        ValueError: naming the arm and the path of what is wrong.
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
    """Merge one arm onto its base and validate every section; see ``resolve_arms``."""
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
        where = ".".join([path, *map(str, first["loc"])])
        raise ValueError(sentence(where, first, values)) from error


def sentence(where: str, problem: Any, values: Any) -> str:
    """Return what is wrong with one value of an arm and what to do."""
    loc = [str(part) for part in problem["loc"]]
    if problem["type"] in UNKNOWN:
        return f"{where} must be a parameter of this project, got an unknown name; {meant(loc[-1], names_at(values, loc[:-1]))}"
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
    """Return the name that was probably meant, or that it should go."""
    close = get_close_matches(name, [other for other in names if other != name], n=1)
    return f"did you mean {close[0]}?" if close else "remove it or correct its name"
