"""Declare how the probabilities of frames and cores are aggregated."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class AggregateParams(BaseModel):
    """How the probabilities of parts are aggregated.

    Attributes:
        core: from the frames of a core to the core: their ``mean``, or their ``max``.
        patient: from the cores of a patient to the patient: their ``max``, or their ``mean``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    core: Literal["mean", "max"] = "mean"
    patient: Literal["mean", "max"] = "max"
