"""Declare the parameters of the pipelines that every task has; the file imports no torch, so that checks run at once."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.arms import NAME, Arms, arms_of
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams, GridParams
from grpo_pipeline.tasks.params import FoldParams
from grpo_pipeline.tasks.spec import TaskSpec

Candidates = dict[str, dict[str, dict[str, Any]]]
Term = Literal["supervised", "policy", "kl", "entropy", "value"]
Expectation = Literal["gradient", "none", "any"]


class EvaluationParams(BaseModel):
    """How arms are compared: ``<task>.evaluation`` in conf/."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: str = Field(description="the task whose metrics are computed")
    split: str = Field(description="name of the split that the predictions belong to")
    control: str = Field(description="the arm that every other arm is compared with")
    not_run: str | None = Field(
        default=None,
        description="the control that is not among the arms of the run; not to be given",
    )
    baseline_arm: str = Field(description="the arm whose decoder scores the other point rules")
    headline_rule: str = Field(
        description="the point rule by which arms are compared: one set of k points"
    )
    rules: dict[str, str] = Field(
        default={},
        description="arm -> the rule in the place of headline_rule: of an arm without points that of no points",
    )
    chance_rule: str = Field(
        description="the rule that policy_gain is measured against: the policy that training began with"
    )
    baselines: tuple[str, ...] = Field(
        default=(),
        description="what a user would try instead, fitted on the training split; the task says what there is",
    )
    cluster: str = Field(description="column of the units that are resampled together")
    seed: int = Field(ge=0, description="seed of the run; the resamples are drawn from it")
    resamples: int = Field(ge=20, description="bootstrap resamples behind each interval")
    metric_options: dict[str, float] = Field(
        description="the task's own constants, such as the bins of the calibration error"
    )

    def rule_of(self, arm: str) -> str:
        """Return the rule by which an arm is judged."""
        return self.rules.get(arm, self.headline_rule)


class GradientFlowParams(BaseModel):
    """How the gradients of a task are audited (``<task>.gradient_flow``).

    Attributes:
        warmup_steps: batches to train on before the audited one.
        expected: term -> component -> ``gradient`` (a norm greater than 0), ``none`` (exactly 0) or ``any``, the default. A
            reward component is never named: it must carry no graph.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    warmup_steps: int = Field(ge=0)
    expected: dict[Term, dict[str, Expectation]]


class RewardAuditParams(BaseModel):
    """How a reward is audited before training. The test split is refused, because the audit guides the design of the reward."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    split: Literal["train", "val"] = Field(description="the split whose examples are scored")
    rows: int = Field(
        ge=2,
        description="examples to score, drawn by the seed; all of the split where it has fewer",
    )
    n_samples: int = Field(
        ge=2,
        description="samples per example of the policies that sample: the group size of training",
    )
    warmup_steps: int = Field(
        ge=0, description="steps of the control's training before the start policy is scored"
    )
    resamples: int = Field(
        ge=20, description="bootstrap resamples of whole clusters behind each interval"
    )
    no_ceiling: Literal["stop", "warn"] = Field(
        default="stop",
        description="whether training stops where the audit finds that the ceiling, which knows the answer, is not paid more "
        "than the start",
    )


class SamplingParams(BaseModel):
    """Which model samples, and for which examples (``<task>.predict``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str = Field(description="whose newest model samples")
    split: str = Field(description="of the examples: any name that the data give")
    samples: int = Field(ge=1, description="for each example")
    temperature: float = Field(
        gt=0, allow_inf_nan=False, description="of the samples; 1 is the trained policy"
    )
    seed: int = Field(ge=0, description="of the samples")


class CrossValidationParams(FoldParams, GridParams):
    """The folds, the arms that are trained on each fold, and the reported metrics."""

    primary_metrics: tuple[str, ...] = Field(
        min_length=1, description="the metrics of the printed table and the figure"
    )
    candidates: Candidates | None = Field(
        description="nested: name -> section -> changes, merged onto every arm; the best of them is chosen in the inner folds"
    )
    selection_metric: str = Field(
        description="nested: the metric whose mean over the inner folds decides"
    )

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        if self.scheme != "nested" and self.candidates is not None:
            raise ValueError(
                f"candidates must be null with scheme: {self.scheme}, got {list(self.candidates)}; "
                "choose among them with scheme: nested, or remove them"
            )
        if self.scheme == "nested":
            check_candidates(self.candidates or {})
        return self


def check_candidates(candidates: Mapping[str, Any]) -> None:
    """Raise ValueError unless there are at least two candidates with proper names."""
    if len(candidates) < 2:
        raise ValueError(
            f"candidates must hold at least 2 settings with scheme: nested, got {list(candidates)}; "
            "add one (name: {} is the arm as it is), or use scheme: kfold"
        )
    if bad := [name for name in candidates if not NAME.fullmatch(name)]:
        raise ValueError(
            f"candidates must be named by small letters, digits and _, got {bad[0]!r}; rename it"
        )


def sections(spec: TaskSpec, arms: Arms | None = None) -> dict[str, Any]:
    """Map the name of each section of a task's parameters to the type that reads it.

    The sections are those that every task has, those of the task, and those of each arm; the arms are the spec's unless given.
    tests/test_startup.py compares the result with the inputs of the pipelines' nodes.
    """
    arms = arms_of(spec, {}) if arms is None else arms
    shared = {
        "training": TrainingParams,
        "evaluation": EvaluationParams,
        "gradient_flow": GradientFlowParams,
        "reward_audit": RewardAuditParams,
        "compare": CompareParams,
        "cross_validation": CrossValidationParams,
        "predict": SamplingParams,
    }
    found = shared | dict(spec.sections)
    algorithms = {f"{arm}.algorithm": AlgorithmParams for arm in (*spec.stages, *arms)}
    own = {
        f"{arm}.{name}": found[name]
        for arm, names in arms.items()
        for name in names
        if name in found
    }
    of_stages = {f"{stage}.training": TrainingParams for stage in spec.stages}
    return found | algorithms | of_stages | own
