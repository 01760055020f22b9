"""Parameters of cross-validation: ``<task>.cross_validation``."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from grpo_pipeline.pipelines.compare.params import NAME, GridParams
from grpo_pipeline.tasks.attention.fold_params import FoldParams

Candidates = dict[str, dict[str, dict[str, Any]]]


class CrossValidationParams(FoldParams, GridParams):
    """The folds, the arms that are trained on each, and what is reported."""

    primary_metrics: tuple[str, ...] = Field(min_length=1, description="the metrics of the printed table and the figure")
    candidates: Candidates | None = Field(
        description="nested: name -> section -> changes, merged onto every arm; the best of them is chosen in the inner folds"
    )
    selection_metric: str = Field(description="nested: the metric whose mean over the inner folds decides")

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
        raise ValueError(f"candidates must be named by small letters, digits and _, got {bad[0]!r}; rename it")
