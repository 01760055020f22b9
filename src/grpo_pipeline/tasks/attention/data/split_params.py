"""Declare how the groups of a data set are divided."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.params import SplitFractions


class SplitParams(BaseModel):
    """How the groups are divided.

    Attributes:
        seed: fixes which group goes where.
        fractions: wanted shares of the groups in train, val and test; they add up to 1.
        single_class: what a val or test split with one class only means; in train it is always an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)]
    fractions: SplitFractions
    single_class: Literal["error", "allow"]
