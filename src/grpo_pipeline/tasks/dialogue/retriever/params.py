"""Declare the parameters of a retriever that learns."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.tasks.params import Section


class LearnedRetriever(Section):
    """A correction of the TF-IDF scores that is learned while the arms train (``dialogue.prompt.retriever``).

    Attributes:
        kind: ``learned``: words of query and story are compared by learned vectors, beside TF-IDF.
        query: the ``persona`` alone, or ``persona_and_last_turn``.
        buckets: rows of each table of word vectors; words share a row where their hashes agree.
        width: numbers of a word vector.
        candidates: stories of each prompt whose replies are written and rewarded in a training step.
        explored: how many of them are drawn from all stories by chance; the others are the best of the index.
        temperature: divides the rewards whose softmax is taught.
        swapped: share of the prompts of the warm start that are taught another prompt's answer, with the story that this finds:
            what a story says must be read, and cannot be remembered.
        index_every: training steps after which the index is encoded anew; null: it stays as it was at the start.
    """

    kind: Literal["learned"]
    query: Literal["persona", "persona_and_last_turn"]
    buckets: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    candidates: Annotated[int, Field(ge=2)]
    explored: Annotated[int, Field(ge=0)]
    temperature: Annotated[float, Field(gt=0)]
    swapped: Annotated[float, Field(ge=0, le=1)]
    index_every: Annotated[int, Field(ge=1)] | None

    @model_validator(mode="after")
    def _explores_candidates(self) -> Self:
        if self.explored > self.candidates:
            raise ValueError(
                f"explored must be at most candidates, got {self.explored} of {self.candidates}; lower it"
            )
        return self
