"""Shares of the groups (patients, personas) in train, val and test: the same for every task."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SplitFractions(BaseModel):
    """Wanted shares of the groups (``<task>.split.fractions``); they add up to 1.

    Attributes:
        train: share that the policies learn from.
        val: share that settings and calibration are chosen on.
        test: share that is held out for the comparison.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    train: Annotated[float, Field(gt=0, lt=1)]
    val: Annotated[float, Field(gt=0, lt=1)]
    test: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _add_up_to_one(self) -> Self:
        total = self.train + self.val + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"split.fractions must add up to 1, got {total:g}; correct one of them")
        return self
