"""Declare the parameters of prompts, rewards and the supervised loss of reference replies."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.rewards.functions import Measure
from grpo_pipeline.rewards.params import (
    FailureParams,
    OwnRewardParams,
    PoolParams,
    check_own_names,
    check_weights,
)

LossMean = Literal["per_token", "per_sequence"]


class PromptParams(BaseModel):
    """How prompts become tokens (``dialogue.prompt``).

    Attributes:
        max_tokens: largest number of tokens of a text of a prompt, its end included.
        too_long: a longer text is refused by name, or loses its beginning (stories before the question).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(ge=2)
    too_long: Literal["refuse", "keep_end"]


class PredictParams(BaseModel):
    """The model and the prompts of a prediction (``dialogue.predict``).

    Attributes:
        arm: the arm whose newest model replies.
        prompts: file of the prompts, set on the command line.
        samples: number of sampled replies of each prompt, beside the likeliest reply.
        seed: seed of the sampled replies.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    prompts: str
    samples: int = Field(ge=0)
    seed: int = Field(ge=0)


class SupervisedParams(BaseModel):
    """The supervised loss: cross-entropy of a reference reply (``dialogue.supervised_loss``).

    Attributes:
        mean: over all tokens of a batch, or first over those of a reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mean: LossMean


BUILT_IN = {
    "f1": "grpo_pipeline.tasks.dialogue.scores.f1:f1",
    "rouge_l": "grpo_pipeline.tasks.dialogue.scores.rouge:rouge_l",
    "bleu": "grpo_pipeline.tasks.dialogue.scores.bleu:bleu",
}


class RewardParams(BaseModel):
    """The named components of the reward, their weights, the rule for failures, and the processes that measure them.

    Attributes:
        weights: built-in component -> weight; a component that is absent, or has weight 0, is not computed.
        own: user-defined rewards, by name; null without any.
        failure: rule for samples whose reward could not be measured.
        pool: the processes that measure rewards.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weights: dict[Literal["f1", "rouge_l", "bleu"], float]
    own: dict[str, OwnRewardParams] | None
    failure: FailureParams
    pool: Annotated[PoolParams, EXECUTION]

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        check_own_names(self.own or {}, BUILT_IN)
        check_weights(self.named_weights)
        return self

    @property
    def component_weights(self) -> dict[str, float]:
        """Map every computed component, built-in or user-defined, to its weight."""
        return {name: weight for name, weight in self.named_weights.items() if weight}

    @property
    def named_weights(self) -> dict[str, float]:
        """Map every component with a given weight, built-in or user-defined, to that weight."""
        named = {str(name): weight for name, weight in self.weights.items()}
        return named | {name: own.weight for name, own in (self.own or {}).items()}

    @property
    def all_weights(self) -> dict[str, float]:
        """Map every component to its weight; 0 for components that are not computed."""
        return self.named_weights | {name: 0.0 for name in BUILT_IN if name not in self.weights}

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """Select the measures of the user-defined components."""
        return {
            name: measure for name, measure in self.measures.items() if name in (self.own or {})
        }

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """Build the function and options of every computed component, once, since a digest reads the function's file."""
        functions = {name: Measure(path, {}) for name, path in BUILT_IN.items()}
        functions |= {
            name: Measure(reward.function, reward.options)
            for name, reward in (self.own or {}).items()
        }
        return {name: functions[name] for name in self.component_weights}
