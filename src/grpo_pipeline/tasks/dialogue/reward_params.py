"""Parameters of the dialogue task's rewards (``dialogue.rewards``). Values live in YAML."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from grpo_pipeline.core.agreement import EXECUTION
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

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # A part that is absent, or has weight 0, is not computed.
    weights: dict[Literal["f1", "rouge_l", "bleu"], float]
    bleu_smoothing: Smoothing
    own: dict[str, OwnRewardParams] | None
    failure: FailureParams
    pool: Annotated[PoolParams, EXECUTION]

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        check_own_names(self.own or {}, BUILT_IN)
        check_weights(self.named_weights)
        return self

    @property
    def part_weights(self) -> dict[str, float]:
        """The weight of every part that is computed, built in and own."""
        return {name: weight for name, weight in self.named_weights.items() if weight}

    @property
    def named_weights(self) -> dict[str, float]:
        """The weights that were given, of built in and own parts."""
        named = {str(name): weight for name, weight in self.weights.items()}
        return named | {name: own.weight for name, own in (self.own or {}).items()}

    @property
    def all_weights(self) -> dict[str, float]:
        """The weight of every part that there is; 0 of what is not computed."""
        return self.named_weights | {name: 0.0 for name in BUILT_IN if name not in self.weights}

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """The parts of the user's that are computed."""
        return {name: measure for name, measure in self.measures.items() if name in (self.own or {})}

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The function and options of every part that is computed; made once, since a digest reads the function's file."""
        options = {"bleu": {"smoothing": self.bleu_smoothing}}
        functions = {name: Measure(path, options.get(name, {})) for name, path in BUILT_IN.items()}
        functions |= {name: Measure(reward.function, reward.options) for name, reward in (self.own or {}).items()}
        return {name: functions[name] for name in self.part_weights}
