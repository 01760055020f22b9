"""Declare the parameters of the comparison of many arms: ``<task>.compare``."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.arms import NAME


class ArmParams(BaseModel):
    """An arm, described by a base arm and its differences.

    Attributes:
        base: the arm whose ``<task>.<base>.algorithm`` is changed.
        set: section -> changes. Mappings are merged, everything else replaces, ``null`` too (``parameter_merge.merge``).
        rule: the rule of the prediction rows by which the arm is judged.
        baseline: name of an entry of ``<task>.evaluation.baselines``. It is fitted on a trial's training split, and nothing else
            is trained. ``rule`` is then its name; the base arm only supplies data and task.
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
    """The arms and seeds of a grid: the fields that ``<task>.compare`` and ``<task>.cross_validation`` share."""

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
        """List the arms that are not null, the control first."""
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
