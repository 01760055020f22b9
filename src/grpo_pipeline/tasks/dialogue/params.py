"""Parameters of prompts and of the supervised loss of reference replies."""

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
        max_tokens: of one text of a prompt, its end included.
        too_long: a longer text is refused by name, or loses its beginning: stories before the question.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(ge=2)
    too_long: Literal["refuse", "keep_end"]


class PredictParams(BaseModel):
    """Which model replies to which prompts (``dialogue.predict``).

    Attributes:
        arm: whose newest model it is.
        prompts: file of the prompts, set on the command line.
        samples: sampled replies of each prompt, beside the likeliest one.
        seed: of these.
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
    """The named components of the reward, their weights, what a failure counts as, and where they are measured.

    Attributes:
        weights: of the built-in components; one that is absent, or has weight 0, is not computed.
        own: rewards of the user's, by name; null without any.
        failure: what a sample counts as when a reward could not be measured.
        pool: where rewards are measured.
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
        """The weight of every component that is computed, built in and own."""
        return {name: weight for name, weight in self.named_weights.items() if weight}

    @property
    def named_weights(self) -> dict[str, float]:
        """The weights that were given, of built in and own components."""
        named = {str(name): weight for name, weight in self.weights.items()}
        return named | {name: own.weight for name, own in (self.own or {}).items()}

    @property
    def all_weights(self) -> dict[str, float]:
        """The weight of every component that there is; 0 of what is not computed."""
        return self.named_weights | {name: 0.0 for name in BUILT_IN if name not in self.weights}

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """The components of the user's that are computed."""
        return {
            name: measure for name, measure in self.measures.items() if name in (self.own or {})
        }

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The function and options of every component that is computed; made once, since a digest reads the function's file."""
        functions = {name: Measure(path, {}) for name, path in BUILT_IN.items()}
        functions |= {
            name: Measure(reward.function, reward.options)
            for name, reward in (self.own or {}).items()
        }
        return {name: functions[name] for name in self.component_weights}
