"""Declare who draws the replies of a training (``dialogue.replies.generation``; docs/dialogue/engines.md)."""

from typing import Annotated, Literal

from pydantic import Field

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.tasks.params import Section


class EngineParams(Section):
    """An engine.

    Attributes:
        kind: ``own``: the project's sampler; ``transformers``: ``generate`` of a folder's network; ``openai_server``: a server.
    """


class OwnGeneration(EngineParams):
    """The project's own sampler, whose log-probabilities are those of the update."""

    kind: Literal["own"] = "own"


class LibraryGeneration(EngineParams):
    """``generate`` of transformers, with the weights that are trained."""

    kind: Literal["transformers"]


class ServerGeneration(EngineParams):
    """A server that speaks the OpenAI protocol, with weights of its own.

    Attributes:
        base_url: its address up to ``/v1``, such as http://127.0.0.1:8000/v1.
        model: name of the model there.
        timeout_s: seconds until a request counts as failed.
        retries: further tries of a request that the server did not answer.
        at_once: requests in flight at a time; each is for all replies to one prompt.
    """

    kind: Literal["openai_server"]
    base_url: Annotated[str, EXECUTION] = Field(pattern=r"^https?://")
    model: str = Field(min_length=1)
    timeout_s: Annotated[float, EXECUTION] = Field(default=60.0, gt=0)
    retries: Annotated[int, EXECUTION] = Field(default=2, ge=0)
    at_once: Annotated[int, EXECUTION] = Field(default=8, ge=1)


Generation = Annotated[
    OwnGeneration | LibraryGeneration | ServerGeneration, Field(discriminator="kind")
]
