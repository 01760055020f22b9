"""Parameters of the supervised loss: its terms by name, each with its weight."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from grpo_pipeline.core.objective.part import Part, Weighed, weights_of

LabelForm = Literal["cross_entropy", "symmetric"]
SampleChoice = Literal["all", "best", "one"]


class ClassLoss(Weighed):
    """The loss of the class, averaged over all samples (``attention.supervised_loss.class``).

    Attributes:
        form: of the loss.
    """

    form: LabelForm = "cross_entropy"


class MilLoss(Weighed):
    """The loss of those pixels of the bag that fit the label of the core best (``attention.supervised_loss.mil``).

    Attributes:
        share: share of the bag's pixels that these are.
        instances: what they are: ``pixels`` of the heatmap, or whole ``cells`` of the grid, each with the mean logit of its
            pixels. A decoder that draws every cell alike can say the label with the same few pixels of each.
    """

    share: float = Field(default=0.2, gt=0, le=1)
    instances: Literal["pixels", "cells"] = "pixels"


class NeedleLoss(Weighed):
    """The loss of every heatmap pixel in the bag against the label of its core (``attention.supervised_loss.needle``).

    Attributes:
        form: of the loss.
        positive_weight: factor on the pixels of cores with cancer.
    """

    form: LabelForm = "cross_entropy"
    positive_weight: float = Field(default=1.0, gt=0)


class SupervisedParams(Part):
    """The terms of the supervised loss, weighed and added up (``attention.supervised_loss``; docs/attention/objectives.md).

    Attributes:
        samples: which samples of a group the decoders learn from.
        mask_share: share of the training patients whose lesion outline is shown to losses and rewards, where they have one; of
            all others it never is; a larger share holds a smaller one. None shows none.
        class_: the class, of the class decoder.
        heatmap: the involvement, of the mean heatmap probability in the bag.
        needle: the label, of every heatmap pixel in the bag.
        mil: the label, of those pixels of the bag that fit it best.
        entropy: a clear heatmap in the bag.
        outline: a shown outline, of the prompted mask.
        heatmap_outline: cancer in a shown outline, of the heatmap.
        glimpse: the involvement, of the glimpse decoder's mean evidence along the bag.
        ridge: small weights, of the class decoder.
        location: the bag or a shown outline, of the policy's first point.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    samples: SampleChoice
    mask_share: float | None = Field(default=None, ge=0, le=1)
    class_: ClassLoss | None = Field(default=None, alias="class")
    heatmap: Weighed | None = None
    needle: NeedleLoss | None = None
    mil: MilLoss | None = None
    entropy: Weighed | None = None
    outline: Weighed | None = None
    heatmap_outline: Weighed | None = None
    glimpse: Weighed | None = None
    ridge: Weighed | None = None
    location: Weighed | None = None

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term by its name; 0 of one that is not there."""
        return weights_of(self, without=("samples", "mask_share"))

    @model_validator(mode="after")
    def _check_some_term(self) -> Self:
        if not any(self.weights.values()):
            raise ValueError(
                "supervised_loss must hold a term, got none; nothing would be learned: leave losses.supervised out of the arms"
            )
        return self

    @model_validator(mode="after")
    def _check_shown(self) -> Self:
        for name in ("outline", "heatmap_outline"):
            if getattr(self, name) and not self.mask_share:
                raise ValueError(
                    f"mask_share must be above 0 with {name}, got {self.mask_share}; say whose outlines are shown, or write "
                    f"{name}: null"
                )
        return self
