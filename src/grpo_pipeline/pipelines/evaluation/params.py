"""Parameters of the evaluation stage."""

from pydantic import BaseModel, ConfigDict, Field


class EvaluationParams(BaseModel):
    """How arms are compared: ``<task>.evaluation`` in conf/."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: str = Field(description="the task whose metrics are computed")
    split: str = Field(description="name of the split that the predictions belong to")
    control: str = Field(description="the arm that every other arm is compared with")
    baseline_arm: str = Field(description="the arm whose decoder scores the other point rules")
    headline_rule: str = Field(description="the point rule by which arms are compared: one set of k points")
    chance_rule: str = Field(description="the point rule that policy_gain is measured against")
    cluster: str = Field(description="column of the units that are resampled together")
    seed: int = Field(ge=0, description="seed of the run; the resamples are drawn from it")
    resamples: int = Field(ge=20, description="bootstrap resamples behind each interval")
    max_undefined: float = Field(ge=0, lt=1, description="share of undefined resamples above which no interval is given")
    metric_options: dict[str, float] = Field(description="the task's own constants, such as the bins of the calibration error")
