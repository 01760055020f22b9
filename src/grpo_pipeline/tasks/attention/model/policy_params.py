"""Parameters of the policy: what it reads, where it starts, whether it stops."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part

BlobWidth = Annotated[float, Field(gt=0, le=0.3, allow_inf_nan=False)]

BLOB_WIDTHS = (0.05, 0.07, 0.1)
"""Of blobs of about 15% to 30% of the image side."""


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
