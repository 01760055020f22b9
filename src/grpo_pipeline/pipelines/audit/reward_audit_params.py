"""Parameters of the reward audit (``<task>.reward_audit``)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class WarningLimits(BaseModel):
    """From where on a finding of the reward audit is a warning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    trivial_share: float = Field(
        ge=0, description="a trivial policy that is paid more than the start: share of the way from the start to the ceiling"
    )
    tied_groups: float = Field(gt=0, le=1, description="share of the start policy's groups whose samples tie")
    constant_groups: float = Field(gt=0, le=1, description="share of its groups within which a weighted part is constant")
    explained_share: float = Field(ge=0, lt=1, description="share of the variance within groups that a weighted part explains")
    disagreement: float = Field(ge=0, lt=1, description="rank correlation of reward and metric in the wrong direction")


class RewardAuditParams(BaseModel):
    """How a reward is audited before training. The test split cannot be named: the reward is designed by what this says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    split: Literal["train", "val"] = Field(description="the split whose examples are scored")
    rows: int = Field(ge=2, description="examples to score, drawn by the seed; all of the split where it has fewer")
    sets: int = Field(ge=2, description="samples per example of the policies that sample: the group size of training")
    warmup_steps: int = Field(ge=0, description="steps of the control's training before the start policy is scored")
    resamples: int = Field(ge=20, description="bootstrap resamples of whole clusters behind each interval")
    warn: WarningLimits
