"""Declare the parameters of the language model: its network, what of it is trained, and the sampling of replies."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.tasks.dialogue.generation.params import Generation, OwnGeneration
from grpo_pipeline.tasks.params import Section


class LoraTuning(Section):
    """A frozen network with low-rank updates of its linear layers.

    Attributes:
        kind: of the tuning.
        rank: r, the width of the two matrices.
        alpha: the update counts alpha / r times.
        targets: last names of the layers that have updates, such as q_proj; null: all but the head.
    """

    kind: Literal["lora"]
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)


class Network(Section):
    """A network.

    Attributes:
        recompute_layers: compute each layer again in the backward pass, which then keeps its input alone.
    """

    # Left out of dumps where it is off.
    recompute_layers: Annotated[bool, EXECUTION] = Field(
        default=False, exclude_if=lambda is_on: not is_on
    )


class NewNetwork(Network):
    """A small network with fresh weights.

    Attributes:
        width: D, a multiple of heads; with llama an even one.
        layers: number of layers; of the encoder and of the decoder each.
        heads: number of heads of each attention.
        tokenizer: ``bytes``: the byte-level tokenizer; else a folder with a tokenizer, as ``save_pretrained`` writes it.
    """

    width: int = Field(ge=1)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    tokenizer: str = Field(default="bytes", min_length=1)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got {self.width} and {self.heads}; change one of them"
            )
        return self


class T5Params(NewNetwork):
    """An encoder-decoder.

    Attributes:
        kind: ``t5`` (encoder-decoder), ``gpt2`` or ``llama`` (causal): fresh weights; ``folder``: those of a folder.
    """

    kind: Literal["t5"]


class CausalParams(NewNetwork):
    """A causal network.

    Attributes:
        kind: of the network.
        max_positions: largest number of tokens of prompt and reply together.
    """

    kind: Literal["gpt2", "llama"]
    max_positions: int = Field(ge=2)

    @model_validator(mode="after")
    def _check_even(self) -> Self:
        if self.kind == "llama" and self.width // self.heads % 2:
            raise ValueError(
                f"width must be an even multiple of heads for llama, got {self.width} and {self.heads}; change one of them"
            )
        return self


class FolderParams(Network):
    """A network from a Hugging Face folder on this machine.

    Attributes:
        kind: of the network.
        path: folder with config.json and the weights as safetensors, as ``save_pretrained`` writes them.
        tokenizer: ``folder``: the tokenizer in the folder; ``bytes``: the byte-level tokenizer, for models of this project and
            ByT5.
        weights: number format of the frozen weights; ``bfloat16`` takes half the memory and needs a ``tuning``.
    """

    kind: Literal["folder"]
    path: str = Field(min_length=1)
    tokenizer: Literal["folder", "bytes"]
    weights: Literal["float32", "bfloat16"] = "float32"


class LanguageModelParams(Section):
    """The language model, which writes the replies (``dialogue.language_model``; docs/dialogue/model.md).

    Attributes:
        network: its sizes, or the folder that it is read from.
        tuning: what is trained where not all of it is; null trains all.
    """

    network: Annotated[T5Params | CausalParams | FolderParams, Field(discriminator="kind")]
    tuning: LoraTuning | None = None

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.weights != "float32" and self.tuning is None:
            raise ValueError(
                f"network.weights must be float32 where all weights are trained, got {self.weights}, which rounds small updates "
                "away; change it, or set tuning: {kind: lora, …}"
            )
        return self

    @property
    def weights(self) -> str:
        """Number format of the network's own weights."""
        return self.network.weights if isinstance(self.network, FolderParams) else "float32"

    @property
    def tokenizer_folder(self) -> str | None:
        """Folder of the tokenizer; None for bytes."""
        if self.network.tokenizer == "bytes":
            return None
        return (
            self.network.path if isinstance(self.network, FolderParams) else self.network.tokenizer
        )


class ReplyParams(Section):
    """How replies are drawn.

    Attributes:
        max_tokens: L, the longest reply, its end included.
        temperature: divides the logits.
        top_k: keep the k likeliest tokens; null keeps all.
        top_p: then keep the smallest set of likeliest tokens that holds this share of the mass; null keeps all.
        tokens_per_batch: largest number of tokens scored at a time, whole prompts only; null scores all at once.
        generation: who draws the replies of a training; validation and evaluation draw by the project's own sampler.
    """

    max_tokens: int = Field(ge=1)
    temperature: float = Field(gt=0)
    top_k: int | None = Field(ge=1)
    top_p: float | None = Field(gt=0, le=1)
    tokens_per_batch: Annotated[int | None, EXECUTION] = Field(ge=1)
    # Left out of dumps where it is the usual one, and so of digests.
    generation: Generation = Field(
        default=OwnGeneration(), exclude_if=lambda part: part.kind == "own"
    )
