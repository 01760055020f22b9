"""Weights of the attention task's named rewards."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RewardParams(BaseModel):
    """Weights of the named reward components (``attention.reward``; docs/attention/objectives.md).

    ``class`` and ``heatmap`` are measured with weight 0, too; the parts of the points are computed only where they count.
    ``cspca_weight`` is no reward: it weighs the advantages of the cores with ``cspca_min_grade`` or more (``priority``).

    Attributes:
        class_weight: of log p(correct class).
        heatmap_weight: of -BCE(heatmap in the bag, involvement) / 2.
        diversity_weight: of the distance of a sample's points to those of its group's other samples, in shares of the image side.
        activation_weight: of the mean probability of the sample's own heatmap at its points.
        boundary_weight: of the penalty, -1 to 0, for points near the region's edge.
        boundary_margin: how near that is, as share of the image side.
        points_weight: of -(points used) / k; with ``model.stop`` only.
        dice_weight: of the Dice coefficient of the prompted mask and a shown outline.
        cspca_weight: factor on the advantages of clinically significant cancer.
        cspca_min_grade: grade group from which a cancer counts as significant.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    class_weight: float = Field(ge=0)
    heatmap_weight: float = Field(ge=0)
    diversity_weight: float = Field(ge=0)
    activation_weight: float = Field(ge=0)
    boundary_weight: float = Field(ge=0)
    boundary_margin: float = Field(gt=0, lt=0.5)
    points_weight: float = Field(ge=0)
    dice_weight: float = Field(default=0.0, ge=0)
    cspca_weight: float = Field(gt=0, allow_inf_nan=False)
    cspca_min_grade: int = Field(ge=1, le=5)

    @model_validator(mode="after")
    def _check_some_reward(self) -> Self:
        """Outlines alone may pay, too: a sample without a shown one then earns what its group earns, and teaches nothing."""
        if self.class_weight + self.heatmap_weight + self.dice_weight == 0:
            raise ValueError(
                "class_weight, heatmap_weight or dice_weight must be positive, got 0 for all; give one part a weight"
            )
        return self
