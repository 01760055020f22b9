"""Parameters of the model: a section for each part, and a union by ``kind`` where a part has several forms.

What a model does not have is null or not named. A kind has the keys that it reads, and no others.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part
from grpo_pipeline.tasks.attention.model.class_decoder.params import (
    ClassDecoderParams,
    StatisticsParams,
)
from grpo_pipeline.tasks.attention.model.encoder.params import (
    PLACE,
    Encoder,
    FrozenEncoder,
    SamEncoder,
)
from grpo_pipeline.tasks.attention.model.policy_params import (
    BLOB_WIDTHS,
    ImageReading,
    PolicyParams,
)


class MaskDecoderParams(Part):
    """SAM's mask decoder.

    Attributes:
        channels: of its tokens and of the encoder's output, a multiple of 8.
        layers: number of them.
        heads: of the attention.
    """

    channels: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.channels % 8 or (self.channels // 2) % self.heads:
            raise ValueError(
                "attention.model.mask_decoder.channels must be a multiple of 8 and its half a multiple of mask_decoder.heads, "
                f"got {self.channels} and {self.heads}; change one of them"
            )
        return self


class DetailParams(Part):
    """A small U-Net on the image: the prompted mask is drawn with its pixels beside SAM's, and the policy reads its cells.

    Attributes:
        channels: of its finest scale, a multiple of 8.
    """

    channels: int = Field(ge=8, multiple_of=8)


class ClinicalParams(Part):
    """Clinical columns as prompt tokens (docs/attention/clinical.md).

    Attributes:
        dropout: probability with which a known value is made unknown, per core and column of a training batch.
    """

    dropout: float = Field(ge=0, le=1)


class ModelParams(Part):
    """The parts of the model (``attention.model``; docs/attention/model.md).

    With an encoder of kind ``sam`` the patch and the sizes of the mask decoder are those of its file.

    Attributes:
        patch_size: pixels of a cell's side; the policy chooses among (image_size / patch_size)^2 cells.
        points: k, points of a set.
        encoder: SAM's image encoder.
        mask_decoder: SAM's mask decoder, which draws the heatmap and prompted masks.
        policy: chooses the points.
        class_decoder: reads the probability of cancer at the points.
        heatmap: ``evidence``: it is computed from the class decoder ``statistics``: how likely cancer is if all points lie in a
            cell, where the policy looks; null: the mask decoder draws it, which losses teach.
        detail: a network of the pixels; null without one.
        clinical: clinical values as prompts; null without them.
    """

    patch_size: int = Field(ge=2)
    points: int = Field(ge=1)
    encoder: Encoder
    mask_decoder: MaskDecoderParams
    policy: PolicyParams
    class_decoder: ClassDecoderParams
    heatmap: Literal["evidence"] | None = None
    detail: DetailParams | None = None
    clinical: ClinicalParams | None = None

    @property
    def copies_encoder(self) -> bool:
        """Whether the policy has an encoder of its own: where it reads one, and something trains it."""
        reads = self.policy.reads
        return isinstance(reads, ImageReading) and reads.encoder == "own" and not self.is_frozen

    @property
    def is_frozen(self) -> bool:
        """Whether nothing of the encoder is trained."""
        return isinstance(self.encoder.tuning, FrozenEncoder)

    @property
    def checkpoint(self) -> SamEncoder | None:
        """The published weights that the model starts from; None where all weights are fresh."""
        return self.encoder if isinstance(self.encoder, SamEncoder) else None

    @property
    def statistics(self) -> StatisticsParams | None:
        """The class decoder where it reads statistics."""
        return self.class_decoder if isinstance(self.class_decoder, StatisticsParams) else None

    @property
    def folds(self) -> int:
        """Regressions of the class decoder that learn from different patients."""
        return 1 if self.statistics is None else self.statistics.folds

    @property
    def blob_widths(self) -> tuple[float, ...]:
        """Widths of the blobs that the prior and the rule ``blobs`` look for."""
        return BLOB_WIDTHS if self.policy.prior is None else self.policy.prior.widths

    def decisive(self) -> dict[str, Any]:
        """Return what decides the weights of a run, as JSON values: all but the place of published weights."""
        return self.model_dump(mode="json", exclude={"encoder": PLACE})

    @model_validator(mode="after")
    def _check_statistics(self) -> Self:
        if self.statistics is not None:
            return self
        kind = self.class_decoder.kind
        if self.policy.reads.kind == "statistics":
            raise ValueError(
                f"attention.model.policy.reads.kind must be image or cell with class_decoder.kind = {kind}, got statistics; only "
                "class_decoder.kind = statistics has them"
            )
        if self.heatmap is not None:
            raise ValueError(
                f"attention.model.heatmap must be null with class_decoder.kind = {kind}, got {self.heatmap}; only "
                "class_decoder.kind = statistics has it"
            )
        return self

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        stop = self.policy.stop
        if stop is not None and stop.min_points >= self.points:
            raise ValueError(
                f"attention.model.policy.stop.min_points must be below attention.model.points = {self.points}, got "
                f"{stop.min_points}; raise points, or set stop to null for sets of a fixed size"
            )
        return self
