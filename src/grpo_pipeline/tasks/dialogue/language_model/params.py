"""Declare the parameters of the language model: its source, and the sampling of replies."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION


class LoraParams(BaseModel):
    """Size of the low-rank updates of a frozen language model.

    Attributes:
        rank: r, the width of the two matrices.
        alpha: the update counts alpha / r times.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)


class NewModelParams(BaseModel):
    """A small language model with fresh weights that reads bytes.

    Attributes:
        source: always ``new``.
        architecture: ``t5`` (seq2seq), ``gpt2`` or ``llama`` (causal).
        width: D, a multiple of heads.
        layers: number of layers of the encoder and of the decoder each.
        heads: number of heads of each attention.
        max_positions: largest number of tokens of prompt and reply together in a causal language model; null for t5, which has no
            such limit.
        lora: freeze the language model and train low-rank updates of its attention; null trains all of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Literal["new"]
    architecture: Literal["t5", "gpt2", "llama"]
    width: int = Field(ge=1)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    max_positions: int | None = Field(ge=2)
    lora: LoraParams | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads or (
            self.architecture == "llama" and self.width // self.heads % 2
        ):
            even = ", with an even quotient for llama" if self.architecture == "llama" else ""
            raise ValueError(
                f"width must be a multiple of heads{even}, got {self.width} and {self.heads}; change one of them"
            )
        if (self.max_positions is None) != (self.architecture == "t5"):
            raise ValueError(
                f"max_positions must be null for t5 and a number for the others, got {self.max_positions} with "
                f"{self.architecture}; correct one of them"
            )
        return self


class FolderModelParams(BaseModel):
    """A language model from a Hugging Face folder on this machine.

    Attributes:
        source: always ``folder``.
        path: folder with config.json and the weights as safetensors, as ``save_pretrained`` writes them.
        tokenizer: ``folder``: the tokenizer in the folder; ``bytes``: the byte-level tokenizer, for models of this project and
            ByT5.
        lora: freeze the language model and train low-rank updates of its attention; null trains all of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Literal["folder"]
    path: str = Field(min_length=1)
    tokenizer: Literal["folder", "bytes"]
    lora: LoraParams | None


LanguageModelParams = Annotated[NewModelParams | FolderModelParams, Field(discriminator="source")]


class LanguageModelSection(BaseModel):
    """The section ``dialogue.language_model``; ``params`` is the chosen model.

    Both kinds stand side by side, so that an environment can switch the kind without naming the keys of the other.

    Attributes:
        source: the kind that is built.
        new: keys of ``NewModelParams`` except source and lora.
        folder: path and tokenizer of ``FolderModelParams``; null without a folder.
        lora: low-rank updates of either kind; null for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Literal["new", "folder"]
    new: dict[str, Any]
    folder: dict[str, Any] | None
    lora: LoraParams | None

    @property
    def params(self) -> NewModelParams | FolderModelParams:
        """Build the parameters of the language model that ``source`` names."""
        if self.source == "folder":
            return FolderModelParams(source="folder", lora=self.lora, **(self.folder or {}))
        return NewModelParams(source="new", lora=self.lora, **self.new)

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if self.source == "folder" and self.folder is None:
            raise ValueError(
                "dialogue.language_model.folder must be given with source = folder, got null; name path and tokenizer"
            )
        _ = self.params  # raises where a value is outside its range
        return self


class ReplyParams(BaseModel):
    """How replies are drawn.

    Attributes:
        max_tokens: L, the longest reply, its end included.
        temperature: divides the logits.
        top_k: keep the k likeliest tokens; null keeps all.
        top_p: then keep the smallest set of likeliest tokens that holds this share of the mass; null keeps all.
        tokens_per_batch: largest number of tokens scored at a time, whole prompts only; null scores all at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(ge=1)
    temperature: float = Field(gt=0)
    top_k: int | None = Field(ge=1)
    top_p: float | None = Field(gt=0, le=1)
    tokens_per_batch: Annotated[int | None, EXECUTION] = Field(ge=1)
