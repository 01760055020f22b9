"""Parameters of the class decoder: one model for each kind of it."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part

EvidencePool = Literal["mean", "noisy_or", "logsumexp"]

FieldSize = Annotated[float, Field(gt=0, allow_inf_nan=False)]

FIELD_CELLS = (3, 7, 11)
"""Sides in cells of the fields whose statistics are read."""


class GlimpseParams(Part):
    """A class decoder that reads small patches around the points, and nothing else.

    Attributes:
        kind: ``glimpse`` reads small patches around the points, ``statistics`` those of some fields around them relative to the
            region, ``global`` the mask decoder's token, which sees all.
        size: pixels of a patch's side.
        channels: filters of its texture.
        pool: how the evidence of k points becomes one number.
    """

    kind: Literal["glimpse"]
    size: int = Field(ge=4)
    channels: int = Field(ge=4)
    pool: EvidencePool = "mean"


class StatisticsParams(Part):
    """A class decoder that is a regression on statistics of fields around the points.

    Attributes:
        kind: of the class decoder.
        fields: their sides in cells, odd and ascending: a fixed share of the image.
        mm: half the sides of as many fields in millimetres, ascending, in images whose spacing is known; in others, and with
            null, they are those of ``fields``.
        folds: of the training patients, with a regression each that does not learn from its fold, and alone judges its points;
            1 is one regression that judges what it learned from.
        region: whether it reads the statistics of the whole region, too.
        mask: the mask of a set that it reads, too: the statistics inside, around and below it, and its shape. ``prompted``: the
            prompted mask, where outlines teach it (``supervised_loss.outline``); ``seeded``: near the points, the pixels that
            differ from their surroundings as the points do, which nobody teaches; null reads none.
        pool: how the evidence of k points becomes one number.
    """

    kind: Literal["statistics"]
    fields: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=FIELD_CELLS, min_length=1)
    mm: tuple[FieldSize, ...] | None = None
    folds: int = Field(default=1, ge=1, le=20)
    region: bool = False
    mask: Literal["prompted", "seeded"] | None = None
    pool: EvidencePool = "mean"

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        where = "attention.model.class_decoder"
        for name, sizes in (("fields", self.fields), ("mm", self.mm or ())):
            if any(b <= a for a, b in pairwise(sizes)):
                raise ValueError(f"{where}.{name} must ascend, got {list(sizes)}; order the fields")
        if even := [side for side in self.fields if side % 2 == 0]:
            raise ValueError(
                f"{where}.fields must be odd, got {even[0]}; a field has a cell in its middle: use {even[0] - 1} or {even[0] + 1}"
            )
        if self.mm is not None and len(self.mm) != len(self.fields):
            raise ValueError(
                f"{where}.mm must have as many fields as {where}.fields, {len(self.fields)}, got {len(self.mm)}; images of "
                "unknown spacing have those"
            )
        return self


class GlobalParams(Part):
    """A class decoder that reads the mask decoder's token, the public design.

    Attributes:
        kind: of the class decoder.
    """

    kind: Literal["global"]


ClassDecoderParams = Annotated[
    GlimpseParams | StatisticsParams | GlobalParams, Field(discriminator="kind")
]
