"""Parameters of the image encoder: fresh or published weights, and what of them is trained."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Part

PLACE = {"path", "format"}
"""Of published weights: where they lie. Their content decides the weights of a run, not their place."""


class FrozenEncoder(Part):
    """An encoder that nothing trains: its features are computed once and stored.

    Attributes:
        kind: ``frozen``: none of its weights; ``adapter``: a small network behind attention and MLP of each block.
    """

    kind: Literal["frozen"]


class AdapterTuning(Part):
    """A frozen encoder with a small network behind attention and MLP of each block.

    Attributes:
        kind: of the tuning.
        rank: width of the network's hidden layer.
    """

    kind: Literal["adapter"]
    rank: int = Field(ge=1)


Tuning = Annotated[FrozenEncoder | AdapterTuning, Field(discriminator="kind")]


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
