"""Declare the constants that the definitions of metrics leave open."""

from pydantic import BaseModel, ConfigDict, Field


class MetricOptions(BaseModel):
    """The constants that the definitions leave open."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    calibration_bins: int = Field(
        default=10, ge=2, description="equal-width bins of the calibration error"
    )
    high_involvement: float = Field(
        default=0.4, gt=0, le=1, description="least involvement of a high-involvement positive"
    )
