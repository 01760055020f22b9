"""Parameters of the dialogue task's rewards (``dialogue.rewards``). Values live in YAML."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from grpo_pipeline.tasks.dialogue.bleu import Smoothing
from grpo_pipeline.tasks.reward_measure import Measure
from grpo_pipeline.tasks.reward_params import FailureParams, OwnRewardParams, check_own_names, check_weights
from grpo_pipeline.tasks.reward_pool import PoolParams

BUILT_IN = {
    "f1": "grpo_pipeline.tasks.dialogue.f1:f1",
    "rouge_l": "grpo_pipeline.tasks.dialogue.rouge:rouge_l",
    "bleu": "grpo_pipeline.tasks.dialogue.bleu:bleu",
}


class RewardParams(BaseModel):
    """The named parts of the reward, their weights, what a failure counts as, and where they are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # A part of weight 0 is measured for the record; one that is absent is not measured.
    weights: dict[Literal["f1", "rouge_l", "bleu"], float]
    bleu_smoothing: Smoothing
    own: dict[str, OwnRewardParams] | None
    failure: FailureParams
    pool: PoolParams

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        check_own_names(self.own or {}, BUILT_IN)
        check_weights(self.part_weights)
        return self

    @property
    def part_weights(self) -> dict[str, float]:
        """The weight of every part, built in and own."""
        weights: dict[str, float] = dict(self.weights.items())
        return weights | {name: own.weight for name, own in (self.own or {}).items()}

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The function and options of every part; made once, since a digest reads the function's file."""
        options = {"bleu": {"smoothing": self.bleu_smoothing}}
        own = {name: Measure(reward.function, reward.options) for name, reward in (self.own or {}).items()}
        return {name: Measure(BUILT_IN[name], options.get(name, {})) for name in self.weights} | own
