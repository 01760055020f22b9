"""Parameters of the dialogue task's rewards (``dialogue.rewards``). Values live in YAML."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.dialogue.bleu import Smoothing
from grpo_pipeline.tasks.reward_measure import Measure, check_measure
from grpo_pipeline.tasks.reward_pool import PoolParams

BUILT_IN = {
    "f1": "grpo_pipeline.tasks.dialogue.f1:f1",
    "rouge_l": "grpo_pipeline.tasks.dialogue.rouge:rouge_l",
    "bleu": "grpo_pipeline.tasks.dialogue.bleu:bleu",
}


class OwnRewardParams(BaseModel):
    """A reward of the user's, by path: ``(replies, answers, **options) -> one number per reply``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    function: str
    weight: float = Field(ge=0, allow_inf_nan=False)
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_function(self) -> Self:
        check_measure(Measure(self.function, self.options))
        return self


class FailureParams(BaseModel):
    """What a reply counts as when one of its rewards could not be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["exclude", "penalty", "stop"]
    # What the failed part is worth, in units of that part, before its weight.
    penalty: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if (self.penalty is None) == (self.rule == "penalty"):
            raise ValueError(
                f"penalty must be a number for rule 'penalty' and absent for others, got {self.penalty} for {self.rule!r}; "
                "say what a failure costs, or use rule 'exclude'"
            )
        return self


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
        for name in self.own or {}:
            if name in BUILT_IN or not name.isidentifier():
                raise ValueError(f"the name of an own reward must be a new word, got {name!r}; {sorted(BUILT_IN)} are taken")
        wrong = {name: weight for name, weight in self.part_weights.items() if not 0 <= weight < float("inf")}
        if wrong:
            raise ValueError(f"reward weights must be finite and >= 0, got {wrong}; change the sign of the reward instead")
        if not any(self.part_weights.values()):
            raise ValueError(f"some reward weight must be positive, got {self.part_weights}; give one part a weight")
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
