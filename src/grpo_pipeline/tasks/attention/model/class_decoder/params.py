"""Parameters of the class decoder: one model for each kind of it."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part

FIELD_CELLS = (3, 7, 11)
"""Sides in cells of the fields whose statistics are read."""


class GlimpseParams(Part):
    """A class decoder that reads small patches around the points, and nothing else.

    Attributes:
        kind: ``glimpse`` reads small patches around the points, ``statistics`` those of some fields around them relative to the
            region, ``global`` the mask decoder's token, which sees all.
        size: pixels of a patch's side.
        channels: filters of its texture.
    """

    kind: Literal["glimpse"]
    size: int = Field(ge=4)
    channels: int = Field(ge=4)


class StatisticsParams(Part):
    """A class decoder that is a regression on statistics of fields around the points.

    Attributes:
        kind: of the class decoder.
        fields: their sides in cells, odd and ascending: a fixed share of the image.
        folds: of the training patients, with a regression each that does not learn from its fold, and alone judges its points;
            1 is one regression that judges what it learned from.
        region: whether it reads the statistics of the whole region, too.
        mask: the mask of a set that it reads, too: the statistics inside, around and below it, and its shape. ``prompted``: the
            prompted mask, where outlines teach it (``supervised_loss.outline``); ``seeded``: near the points, the pixels that
            differ from their surroundings as the points do, which nobody teaches; null reads none.
    """

    kind: Literal["statistics"]
    fields: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=FIELD_CELLS, min_length=1)
    folds: int = Field(default=1, ge=1, le=20)
    region: bool = False
    mask: Literal["prompted", "seeded"] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        where = "attention.model.class_decoder.fields"
        if any(b <= a for a, b in pairwise(self.fields)):
            raise ValueError(f"{where} must ascend, got {list(self.fields)}; order the fields")
        if even := [side for side in self.fields if side % 2 == 0]:
            raise ValueError(
                f"{where} must be odd, got {even[0]}; a field has a cell in its middle: use {even[0] - 1} or {even[0] + 1}"
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
