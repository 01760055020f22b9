"""Parameters of the attention model."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ValuePool = Literal["image", "region", "attention"]
PolicyReads = Literal["image", "cell", "statistics"]
FieldSize = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FIELD_CELLS = (3, 7, 11)
"""Sides in cells of the fields whose statistics are read."""
BlobWidth = Annotated[float, Field(gt=0, le=0.3, allow_inf_nan=False)]
BLOB_WIDTHS = (0.05, 0.07, 0.1)
"""Of blobs of about 15% to 30% of the image side."""


class CheckpointParams(BaseModel):
    """Weights of a SAM to start from (``attention.model.checkpoint``; docs/attention/checkpoints.md).

    Attributes:
        path: a folder (``huggingface``) or a file (``segment_anything``).
        kind: ``huggingface``: config.json and model.safetensors, as SamModel.save_pretrained writes them;
            ``segment_anything``: a .pth of SAM or MedSAM with the names of the original package.
        normalisation: what the encoder was trained on; ``sam``: RGB statistics; ``medsam``: each image from 0 to 1;
            ``none``: images standardised as without a checkpoint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: str = Field(min_length=1)
    kind: Literal["huggingface", "segment_anything"]
    normalisation: Literal["sam", "medsam", "none"]


class ClinicalParams(BaseModel):
    """Clinical columns as prompt tokens (``attention.model.clinical``; docs/attention/clinical.md).

    Attributes:
        dropout: probability with which a known value is made unknown, per core and column of a training batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dropout: float = Field(ge=0, le=1)


class EncoderTuningParams(BaseModel):
    """Size of what is added to a frozen encoder (``attention.model.encoder_tuning``; docs/attention/checkpoints.md).

    Attributes:
        rank: r, the width of the bottleneck: of the two LoRA matrices, or of the adapter's hidden layer.
        alpha: LoRA's scale, its update counts alpha / r times; null with adapters.
        targets: LoRA's layers in each attention block: ``qkv``, or also the output projection ``proj``; null with adapters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(ge=1)
    alpha: float | None = Field(default=None, gt=0)
    targets: tuple[Literal["qkv", "proj"], ...] | None = Field(default=None, min_length=1)


class StopParams(BaseModel):
    """Sets of ``min_points`` to ``points`` points, as many as the policy decides (``model.stop``; docs/attention/points.md).

    Attributes:
        min_points: points that every set has at least, below ``points``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_points: int = Field(ge=1)


DELETED_FIELDS = {
    "looks": 1,
    "looks_at": None,
    "mask_prompt": False,
    "point_labels": "foreground",
}
"""Fields of ``ModelParams`` in models that older versions exported, with the value that did without them."""


class ModelParams(BaseModel):
    """Sizes and switches of the model (``attention.model``).

    With a ``checkpoint`` the patch and the sizes of encoder, features and decoder are those of its file. ``likelihood`` and
    ``stop`` have defaults, so that a model exported without them can be read.

    Attributes:
        patch_size: pixels of a cell's side; the policy chooses among (image_size / patch_size)^2 cells.
        encoder_width: of a cell's features inside the encoder, a multiple of ``encoder_heads``.
        encoder_layers: number of them.
        encoder_heads: of the encoder's attention.
        encoder_window: cells of the side of a window of attention; 0 attends globally, as the last layer always does.
        encoder: what of the encoder is trained: all of it, nothing, or a small addition.
        feature_channels: of the encoder's output, a multiple of 8.
        decoder_layers: of the mask decoder.
        decoder_heads: of the mask decoder's attention.
        policy_channels: of the policy network, a multiple of 8.
        texture_channels: learned filters of the policy's texture input.
        points: k, points of a set.
        class_decoder: ``glimpse`` reads small patches around the points, ``statistics`` those of some fields around them
            relative to the region, ``global`` the mask decoder's token, which sees all.
        glimpse_size: pixels of a glimpse's side.
        glimpse_channels: of the glimpse network.
        glimpse_pool: how the evidence of k points becomes one number.
        reads_region: whether ``statistics`` reads those of the whole region beside the points'.
        reads_mask: the mask of a set that ``statistics`` reads, too: the statistics inside, around and below it, and its shape.
            ``prompted``: the prompted mask, where outlines teach it (``outline_weight``); ``seeded``: near the points, the
            pixels that differ from their surroundings as the points do, which nobody teaches.
        field_cells: sides of the fields of ``statistics`` in cells, odd and ascending: a fixed share of the image.
        field_mm: half the sides of as many fields in millimetres, ascending, in images whose spacing is known; in others, and
            with null, they are those of ``field_cells``.
        decoder_folds: of the training patients, with a regression of ``statistics`` each that does not learn from its fold,
            and alone judges its points; 1 is one regression that judges what it learned from.
        policy_reads: ``image``: features of the whole image; ``cell``: texture and statistics of the cell's own fields
            alone, so that points cannot become a code for what the image shows elsewhere; ``statistics``: these statistics
            alone, by one linear map, with class_decoder: statistics.
        policy_encoder: what encodes the image for policy and value: the decoders' encoder (``shared``), or a copy of it that the
            terms of the policy alone train (``own``), as the component ``policy_encoder``. A frozen encoder, and a policy that
            reads none, have no copy.
        prior: logits that the policy adds to its own, so that it does not start uniform: ``dark_blobs`` prefers the
            middles of dark blobs (a difference of Gaussians).
        prior_strength: nats per standard deviation of the blob map.
        blob_widths: standard deviations of the inner Gaussians of the blob map, in shares of the image side; a blob is about
            three times as wide. They are those of the rule ``blobs``, too.
        detail_channels: of a small U-Net on the image, whose pixels the prompted mask is drawn with beside SAM's, and whose
            features of a cell the policy reads; a multiple of 8, 0 for none.
        heatmap: who draws it: SAM's mask ``decoder``, which losses teach; or it is the ``evidence`` of the class decoder
            ``statistics``, computed: how likely cancer is if all points lie in a cell, where the policy looks.
        value_pool: what the value head sees: the image, the region, or what the policy attends to.
        encoder_tuning: sizes of the addition for ``adapter`` and ``lora``; null for the others.
        clinical: clinical values as prompts; null without them.
        checkpoint: weights of SAM to begin with; null begins with fresh ones.
        feature_dtype: how the features of a frozen encoder are stored.
        likelihood: of a set of points: exact, or of independent draws, the defect of public versions, as an ablation.
        stop: lets the policy decide how many points it needs, k at most; null always takes k.
        box: ``points``: the mask decoder is prompted with the box around the cells of a set's points, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    patch_size: int = Field(ge=2)
    encoder_width: int = Field(ge=8)
    encoder_layers: int = Field(ge=1)
    encoder_heads: int = Field(ge=1)
    encoder_window: int = Field(ge=0)
    encoder: Literal["train", "frozen", "adapter", "lora"]
    feature_channels: int = Field(ge=8)
    decoder_layers: int = Field(ge=1)
    decoder_heads: int = Field(ge=1)
    policy_channels: int = Field(ge=8, multiple_of=8)
    texture_channels: int = Field(ge=1)
    points: int = Field(ge=1)
    class_decoder: Literal["glimpse", "statistics", "global"]
    glimpse_size: int = Field(ge=4)
    glimpse_channels: int = Field(ge=4)
    glimpse_pool: Literal["mean", "noisy_or", "logsumexp"]
    value_pool: ValuePool
    encoder_tuning: EncoderTuningParams | None = None
    clinical: ClinicalParams | None = None
    checkpoint: CheckpointParams | None = None
    feature_dtype: Literal["float32", "float16"] = "float32"
    likelihood: Literal["plackett_luce", "independent"] = "plackett_luce"
    stop: StopParams | None = None
    reads_region: bool = False
    # What is off by default is not written either: a model without is described as it always was.
    reads_mask: Literal["none", "prompted", "seeded"] = Field(
        default="none", exclude_if=lambda mask: mask == "none"
    )
    field_cells: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=FIELD_CELLS, min_length=1, exclude_if=lambda sides: sides == FIELD_CELLS
    )
    field_mm: tuple[FieldSize, ...] | None = Field(
        default=None, exclude_if=lambda sizes: sizes is None
    )
    decoder_folds: int = Field(default=1, ge=1, le=20)
    policy_reads: PolicyReads = "image"
    # Left out of dumps where it is shared, and so of digests.
    policy_encoder: Literal["shared", "own"] = Field(
        default="shared", exclude_if=lambda encoder: encoder == "shared"
    )
    prior: Literal["none", "dark_blobs"] = "none"
    prior_strength: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    blob_widths: tuple[BlobWidth, ...] = Field(
        default=BLOB_WIDTHS, min_length=1, exclude_if=lambda widths: widths == BLOB_WIDTHS
    )
    detail_channels: int = Field(default=0, ge=0, multiple_of=8)
    heatmap: Literal["decoder", "evidence"] = Field(
        default="decoder", exclude_if=lambda drawn: drawn == "decoder"
    )
    box: Literal["none", "points"] = "none"

    @property
    def copies_encoder(self) -> bool:
        """Whether the policy has an encoder of its own: where it reads one, and something trains it."""
        return (
            self.policy_encoder == "own"
            and self.policy_reads == "image"
            and self.encoder != "frozen"
        )

    @model_validator(mode="after")
    def _check_features_are_stored(self) -> Self:
        if self.feature_dtype != "float32" and self.encoder == "train":
            raise ValueError(
                f"attention.model.feature_dtype must be float32 with encoder: train, got {self.feature_dtype}; only the features "
                "of a frozen encoder are stored"
            )
        return self

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for name, sizes in (("field_cells", self.field_cells), ("field_mm", self.field_mm or ())):
            if any(b <= a for a, b in pairwise(sizes)):
                raise ValueError(
                    f"attention.model.{name} must ascend, got {list(sizes)}; order the fields"
                )
        if even := [side for side in self.field_cells if side % 2 == 0]:
            raise ValueError(
                f"attention.model.field_cells must be odd, got {even[0]}; a field has a cell in its middle: use {even[0] - 1} or "
                f"{even[0] + 1}"
            )
        if self.field_mm is not None and len(self.field_mm) != len(self.field_cells):
            raise ValueError(
                f"attention.model.field_mm must have as many fields as field_cells, {len(self.field_cells)}, got "
                f"{len(self.field_mm)}; images of unknown spacing have those"
            )
        return self

    @model_validator(mode="after")
    def _check_statistics(self) -> Self:
        if self.class_decoder == "statistics":
            return self
        for name, rule, is_met in (
            ("reads_region", "false", not self.reads_region),
            ("reads_mask", "none", self.reads_mask == "none"),
            ("decoder_folds", "1", self.decoder_folds == 1),
            ("policy_reads", "image or cell", self.policy_reads != "statistics"),
            ("field_cells", str(list(FIELD_CELLS)), self.field_cells == FIELD_CELLS),
            ("field_mm", "null", self.field_mm is None),
            ("heatmap", "decoder", self.heatmap == "decoder"),
        ):
            if not is_met:
                value = getattr(self, name)
                shown = list(value) if isinstance(value, tuple) else str(value).lower()
                raise ValueError(
                    f"attention.model.{name} must be {rule} with class_decoder: {self.class_decoder}, got {shown}; "
                    "only class_decoder: statistics has it"
                )
        return self

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if self.stop is None:
            return self
        if self.stop.min_points >= self.points:
            raise ValueError(
                f"stop.min_points must be below points = {self.points}, got {self.stop.min_points}; raise points, or set stop "
                "to null for sets of a fixed size"
            )
        if self.likelihood != "plackett_luce":
            raise ValueError(
                f"likelihood must be plackett_luce with a stop decision, got {self.likelihood}; the odds of a stop are those "
                "against the cells that are left"
            )
        return self

    @model_validator(mode="after")
    def _check_divisibility(self) -> Self:
        if self.encoder_width % self.encoder_heads:
            raise ValueError(
                f"encoder_width must be a multiple of encoder_heads, got {self.encoder_width} and {self.encoder_heads}; "
                "change one of them"
            )
        if self.feature_channels % 8 or (self.feature_channels // 2) % self.decoder_heads:
            raise ValueError(
                "feature_channels must be a multiple of 8 and its half a multiple of decoder_heads, got "
                f"{self.feature_channels} and {self.decoder_heads}; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_tuning(self) -> Self:
        tuning, is_tuned = self.encoder_tuning, self.encoder in ("adapter", "lora")
        if is_tuned != (tuning is not None):
            rule = "given" if is_tuned else "null"
            raise ValueError(
                f"encoder_tuning must be {rule} with encoder: {self.encoder}, got {tuning}; correct one of them"
            )
        if tuning is None:
            return self
        for name in ("alpha", "targets"):
            value = getattr(tuning, name)
            if (self.encoder == "lora") != (value is not None):
                rule = "given" if self.encoder == "lora" else "null"
                raise ValueError(
                    f"encoder_tuning.{name} must be {rule} with encoder: {self.encoder}, got {value}; correct it"
                )
        return self
