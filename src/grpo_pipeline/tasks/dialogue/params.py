"""Parameters of prompts and of the supervised loss of reference replies."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.dialogue.language_model.scoring import LossMean


class PromptParams(BaseModel):
    """How prompts become tokens (``dialogue.prompt``).

    Attributes:
        max_tokens: of one text of a prompt, its end included.
        too_long: a longer text is refused by name, or loses its beginning: stories before the question.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(ge=2)
    too_long: Literal["refuse", "keep_end"]


class SupervisedParams(BaseModel):
    """The supervised loss: cross-entropy of a reference reply (``dialogue.supervised_loss``).

    Attributes:
        mean: over all tokens of a batch, or first over those of a reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mean: LossMean
