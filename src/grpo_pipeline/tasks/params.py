"""Declare what a section of parameters is, and how every task divides its examples. The file imports no torch."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A section of parameters, which has no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SplitFractions(Section):
    """Wanted shares of the groups (``<task>.split.fractions``); they add up to 1.

    Attributes:
        train: share that the policies learn from.
        val: share that settings and calibration are chosen on.
        test: share that is held out for the comparison.
    """

    train: Annotated[float, Field(gt=0, lt=1)]
    val: Annotated[float, Field(gt=0, lt=1)]
    test: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _add_up_to_one(self) -> Self:
        total = self.train + self.val + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"split.fractions must add up to 1, got {total:g}; correct one of them"
            )
        return self


class FoldParams(Section):
    """The folds of ``<task>.cross_validation`` (docs/cross_validation.md).

    Attributes:
        scheme: ``kfold``: the test split of the data is held out, the rest is divided into folds. ``nested``: all examples are
            divided, and each training part once more, to choose settings. ``leave_one_center_out``: a fold per center.
        folds: number of folds of ``kfold`` and ``nested``.
        inner_folds: number of folds inside each training part of ``nested``.
        val_share: share of a training part's clusters that is not trained on, but used for watching and early decisions.
        seed: decides the fold of each cluster.
    """

    scheme: Literal["kfold", "nested", "leave_one_center_out"]
    folds: Annotated[int, Field(ge=2)]
    inner_folds: Annotated[int, Field(ge=2)]
    val_share: Annotated[float, Field(gt=0, le=0.5)]
    seed: Annotated[int, Field(ge=0)]
