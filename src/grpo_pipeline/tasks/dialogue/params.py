"""Declare the parameters of prompts, predictions and the supervised loss of reference replies."""

from typing import Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.tasks.dialogue.retriever.params import LearnedRetriever
from grpo_pipeline.tasks.params import Section

LossMean = Literal["per_token", "per_sequence"]


class PromptParams(Section):
    """How prompts become tokens (``dialogue.prompt``).

    Attributes:
        max_tokens: largest number of tokens of a text of a prompt, its end included.
        too_long: a longer text is refused by name, or loses its beginning (stories before the question).
        template: ``chat``: a prompt is a conversation in the form of the tokenizer's chat template; null: plain text.
        retriever: finds the stories of a prompt and learns to; null: those of the data.
    """

    max_tokens: int = Field(ge=2)
    too_long: Literal["refuse", "keep_end"]
    template: Literal["chat"] | None = None
    retriever: LearnedRetriever | None = None

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.template is not None and self.too_long == "keep_end":
            raise ValueError(
                "too_long must be refuse with a template, whose beginning no prompt may lose, got keep_end; change one of them"
            )
        return self


class PredictParams(Section):
    """The model and the prompts of a prediction (``dialogue.predict``).

    Attributes:
        arm: the arm whose newest model replies.
        prompts: file of the prompts, set on the command line.
        samples: number of sampled replies of each prompt, beside the likeliest reply.
        seed: seed of the sampled replies.
    """

    arm: str
    prompts: str
    samples: int = Field(ge=0)
    seed: int = Field(ge=0)


class SupervisedParams(Section):
    """The supervised loss: cross-entropy of a reference reply (``dialogue.supervised_loss``).

    Attributes:
        mean: over all tokens of a batch, or first over those of a reply.
    """

    mean: LossMean
