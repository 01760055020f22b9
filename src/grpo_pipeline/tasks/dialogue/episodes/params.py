"""Declare the parameters of the environment: a term of the reward that also answers (``dialogue.reward.environment``)."""

from typing import Any, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.episodes.environment import check_environment


class EnvironmentReward(Weighed):
    """An environment: it answers the replies of a conversation, and what it pays for them is added up.

    Attributes:
        environment: import path of its class, ``package.module:Class`` (``episodes.environment.Environment``).
        turns: largest number of replies in a conversation.
        options: keyword arguments of the class.
    """

    environment: str
    turns: int = Field(ge=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_environment(self) -> Self:
        check_environment(self.environment, self.options)
        return self
