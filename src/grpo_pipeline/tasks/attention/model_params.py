"""Parameters of the attention model: a section for each part, and a union by ``kind`` where a part has several forms.

What a model does not have is null or not named. A kind has the keys that it reads, and no others.
"""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ValuePool = Literal["image", "region", "attention"]
EvidencePool = Literal["mean", "noisy_or", "logsumexp"]
FieldSize = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FIELD_CELLS = (3, 7, 11)
"""Sides in cells of the fields whose statistics are read."""
BlobWidth = Annotated[float, Field(gt=0, le=0.3, allow_inf_nan=False)]
BLOB_WIDTHS = (0.05, 0.07, 0.1)
"""Of blobs of about 15% to 30% of the image side."""
PLACE = {"path", "format"}
"""Of published weights: where they lie. Their content decides the weights of a run, not their place."""


class Part(BaseModel):
    """A section of ``attention.model``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FrozenEncoder(Part):
    """An encoder that nothing trains: its features are computed once and stored.

    Attributes:
        kind: ``frozen``: none of its weights; ``adapter``: a small network behind attention and MLP of each block; ``lora``:
            low-rank updates of its attention.
        stored: precision of the stored features.
    """

    kind: Literal["frozen"]
    stored: Literal["float32", "float16"] = "float32"


class AdapterTuning(Part):
    """A frozen encoder with a small network behind attention and MLP of each block.

    Attributes:
        kind: of the tuning.
        rank: width of the bottleneck: of the adapter's hidden layer, or of the two LoRA matrices.
    """

    kind: Literal["adapter"]
    rank: int = Field(ge=1)


class LoraTuning(Part):
    """A frozen encoder with low-rank updates of its attention.

    Attributes:
        kind: of the tuning.
        rank: width of the two matrices.
        alpha: scale; an update counts alpha / rank times.
        targets: layers of each block: ``qkv``, or also the output projection ``proj``.
    """

    kind: Literal["lora"]
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    targets: tuple[Literal["qkv", "proj"], ...] = Field(min_length=1)


Tuning = Annotated[FrozenEncoder | AdapterTuning | LoraTuning, Field(discriminator="kind")]


class NewEncoder(Part):
    """SAM's image encoder with fresh weights.

    Attributes:
        kind: ``new``: fresh weights; ``sam``: those of a file, with its sizes.
        width: of a cell's features inside the encoder, a multiple of ``heads``.
        layers: number of them.
        heads: of the attention.
        window: cells of the side of a window of attention; 0 attends globally, as the last layer always does.
        tuning: what is trained where not all of it is: nothing, or a small addition; null trains all.
    """

    kind: Literal["new"]
    width: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    window: int = Field(ge=0)
    tuning: Tuning | None = None

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"attention.model.encoder.width must be a multiple of encoder.heads, got {self.width} and {self.heads}; change "
                "one of them"
            )
        return self


class SamEncoder(Part):
    """Published weights of a whole SAM, its prompt encoder and mask decoder included (docs/attention/checkpoints.md).

    Attributes:
        kind: ``new``: fresh weights; ``sam``: those of a file, with its sizes.
        path: a folder (``huggingface``) or a file (``segment_anything``).
        format: ``huggingface``: config.json and model.safetensors, as SamModel.save_pretrained writes them;
            ``segment_anything``: a .pth of SAM or MedSAM with the names of the original package.
        normalisation: what the encoder was trained on; ``sam``: RGB statistics; ``medsam``: each image from 0 to 1;
            ``none``: images standardised as for fresh weights.
        tuning: what is trained where not all of it is: nothing, or a small addition; null trains all.
    """

    kind: Literal["sam"]
    path: str = Field(min_length=1)
    format: Literal["huggingface", "segment_anything"]
    normalisation: Literal["sam", "medsam", "none"]
    tuning: Tuning | None = None


Encoder = Annotated[NewEncoder | SamEncoder, Field(discriminator="kind")]


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


class ImageReading(Part):
    """A policy that reads features of the whole image, and the texture of each cell.

    Attributes:
        kind: ``image``: features of the whole image; ``cell``: texture and statistics of the cell's own fields alone, so that
            points cannot become a code for what the image shows elsewhere; ``statistics``: these statistics alone, by one linear
            map, with the class decoder ``statistics``.
        encoder: what encodes the image for policy and value: the decoders' encoder (``shared``), or a copy of it that the terms
            of the policy alone train (``own``), as the component ``policy_encoder``. A frozen encoder has no copy.
    """

    kind: Literal["image"]
    encoder: Literal["shared", "own"] = "shared"


class CellReading(Part):
    """A policy that reads each cell by itself.

    Attributes:
        kind: of what the policy reads.
    """

    kind: Literal["cell", "statistics"]


PolicyReading = Annotated[ImageReading | CellReading, Field(discriminator="kind")]


class StopParams(Part):
    """Sets of ``min_points`` to ``points`` points, as many as the policy decides (docs/attention/points.md).

    Attributes:
        min_points: points that every set has at least, below ``points``.
    """

    min_points: int = Field(ge=1)


class DarkBlobs(Part):
    """Logits that the policy adds to its own: it prefers the middles of dark blobs (a difference of Gaussians).

    Attributes:
        kind: ``dark_blobs``: the policy starts where a detector of dark blobs would look.
        strength: nats per standard deviation of the blob map.
        widths: standard deviations of the inner Gaussians of the blob map, in shares of the image side; a blob is about three
            times as wide. They are those of the rule ``blobs``, too.
    """

    kind: Literal["dark_blobs"]
    strength: float = Field(default=3.0, gt=0)
    widths: tuple[BlobWidth, ...] = Field(default=BLOB_WIDTHS, min_length=1)


class PolicyParams(Part):
    """The policy, which chooses the points.

    Attributes:
        reads: what its logits depend on.
        channels: of its network, a multiple of 8.
        filters: learned filters of the texture of a cell.
        prior: where it starts; null starts uniform in the region.
        stop: lets it decide how many points it needs, k at most; null always takes k.
        likelihood: of a set of points: exact, or of independent draws, the defect of public versions, as an ablation.
    """

    reads: PolicyReading
    channels: int = Field(ge=8, multiple_of=8)
    filters: int = Field(ge=1)
    prior: DarkBlobs | None = None
    stop: StopParams | None = None
    likelihood: Literal["plackett_luce", "independent"] = "plackett_luce"

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if self.stop is not None and self.likelihood != "plackett_luce":
            raise ValueError(
                f"attention.model.policy.likelihood must be plackett_luce with a stop decision, got {self.likelihood}; the odds "
                "of a stop are those against the cells that are left"
            )
        return self


class ValueParams(Part):
    """The value head, which estimates the reward of an image.

    Attributes:
        pool: what it sees: the image, the region, or what the policy attends to.
    """

    pool: ValuePool


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
        value: the reward that the policy expects of an image.
        class_decoder: reads the probability of cancer at the points.
        heatmap: ``evidence``: it is computed from the class decoder ``statistics``: how likely cancer is if all points lie in a
            cell, where the policy looks; null: the mask decoder draws it, which losses teach.
        detail: a network of the pixels; null without one.
        box: ``points``: the mask decoder is prompted with the box around the cells of a set's points, too; null without it.
        clinical: clinical values as prompts; null without them.
    """

    patch_size: int = Field(ge=2)
    points: int = Field(ge=1)
    encoder: Encoder
    mask_decoder: MaskDecoderParams
    policy: PolicyParams
    value: ValueParams
    class_decoder: ClassDecoderParams
    heatmap: Literal["evidence"] | None = None
    detail: DetailParams | None = None
    box: Literal["points"] | None = None
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
    def millimetres(self) -> tuple[float, ...] | None:
        """Half the sides of the fields that are read in millimetres; None where there are none."""
        return None if self.statistics is None else self.statistics.mm

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
