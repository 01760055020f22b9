"""Parameters of what every task can do with its examples; imports no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class FoldParams(BaseModel):
    """The folds of ``<task>.cross_validation`` (docs/cross_validation.md).

    Attributes:
        scheme: ``kfold``: the test split of the data is held out, the rest is divided into folds; ``nested``: all examples are
            divided, and each training part once more, to choose settings; ``leave_one_center_out``: a fold per center.
        folds: number of folds of ``kfold`` and ``nested``.
        inner_folds: number of folds inside each training part of ``nested``.
        val_share: share of a training part's clusters that is not trained on: for watching and early decisions.
        seed: fixes which cluster goes where.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scheme: Literal["kfold", "nested", "leave_one_center_out"]
    folds: Annotated[int, Field(ge=2)]
    inner_folds: Annotated[int, Field(ge=2)]
    val_share: Annotated[float, Field(gt=0, le=0.5)]
    seed: Annotated[int, Field(ge=0)]
