"""Weights and forms of the attention task's supervised loss."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LabelLoss = Literal["cross_entropy", "symmetric"]
SampleChoice = Literal["all", "best", "one"]


class SupervisedParams(BaseModel):
    """Weights and forms of the supervised loss (``attention.supervised_loss``; docs/attention/objectives.md).

    Attributes:
        samples: which samples of a group the decoders learn from.
        class_weight: of the loss of the class.
        class_form: of that loss.
        heatmap_weight: of the loss of the mean heatmap probability in the bag against the involvement.
        needle_weight: of the loss of every heatmap pixel in the bag against the label of its core.
        needle_form: of that loss.
        needle_positive_weight: factor on the pixels of cores with cancer.
        mil_weight: as ``needle_weight``, for those pixels of the bag that fit the label best.
        mil_share: share of the bag's pixels that these are.
        mil_on: what they are: ``pixels`` of the heatmap, or whole ``cells`` of the grid, each with the mean logit of its
            pixels. A decoder that draws every cell alike can say the label with the same few pixels of each.
        entropy_weight: of the binary entropy of the heatmap in the bag.
        class_penalty: of half the squared weights of the class decoder, a ridge; 1 / (C n) of a regression on n images.
        location_weight: of -log P(the policy's first point lies in the bag), where a bag mask is shown, or with ``mask_share``
            in the outline: the policy learns from outlines what it otherwise finds by reward.
        mask_share: share of the training patients whose lesion outline is shown to losses and rewards, where they have one; of
            all others it never is; a larger share holds a smaller one. None shows none.
        outline_weight: of the loss of the prompted mask against a shown outline.
        heatmap_outline_weight: of the loss of the heatmap against cancer in a shown outline.
        glimpse_weight: of the loss of the glimpse decoder's mean evidence along the bag against the involvement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    samples: SampleChoice
    class_weight: float = Field(ge=0)
    class_form: LabelLoss
    heatmap_weight: float = Field(ge=0)
    needle_weight: float = Field(ge=0)
    needle_form: LabelLoss
    needle_positive_weight: float = Field(gt=0, allow_inf_nan=False)
    mil_weight: float = Field(ge=0)
    mil_share: float = Field(gt=0, le=1)
    mil_on: Literal["pixels", "cells"] = "pixels"
    entropy_weight: float = Field(ge=0)
    glimpse_weight: float = Field(ge=0)
    class_penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    location_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    mask_share: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    outline_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    heatmap_outline_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_shown(self) -> Self:
        for name in ("outline_weight", "heatmap_outline_weight"):
            if (weight := getattr(self, name)) and not self.mask_share:
                raise ValueError(
                    f"mask_share must be above 0 with {name} = {weight:g}, got {self.mask_share}; say whose outlines are "
                    f"shown, or set {name}: 0"
                )
        return self
