"""Declare the parameters of rewards that every task shares: user-defined functions, failures, weights."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.rewards.functions import Measure, check_measure


class OwnRewardParams(BaseModel):
    """A user-defined reward, by path: ``(subjects, references, **options) -> one number per subject``.

    It may also be called by name, ``(prompts, completions, **kwargs)``.

    Attributes:
        function: import path, ``package.module:function``.
        weight: weight of this component; with 0 the function is not even imported.
        options: keyword arguments of the function.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    function: str
    weight: float = Field(ge=0, allow_inf_nan=False)
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_function(self) -> Self:
        if self.weight:  # a component without a weight is not computed, and not even imported
            check_measure(Measure(self.function, self.options))
        return self


class FailureParams(BaseModel):
    """Value of a sample if one of its rewards could not be measured.

    Attributes:
        rule: ``exclude`` leaves the sample out of its group, ``penalty`` gives it a value, ``stop`` ends the run.
        penalty: value of the failed component, in its own units, before its weight; with rule ``penalty`` only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: Literal["exclude", "penalty", "stop"]
    penalty: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if (self.penalty is None) == (self.rule == "penalty"):
            raise ValueError(
                f"penalty must be a number for rule 'penalty' and absent for others, got {self.penalty} for {self.rule!r}; "
                "say what a failure costs, or use rule 'exclude'"
            )
        return self


def check_own_names(own: Collection[str], built_in: Collection[str]) -> None:
    """Refuse a user-defined reward whose name is taken or no word.

    Raises:
        ValueError: for the first such name.
    """
    for name in own:
        if name in built_in or not name.isidentifier():
            raise ValueError(
                f"the name of an own reward must be a new word, got {name!r}; {sorted(built_in)} are taken"
            )


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights that are negative or not finite, and weights without any positive one.

    Raises:
        ValueError: then.
    """
    wrong = {name: weight for name, weight in weights.items() if not 0 <= weight < math.inf}
    if wrong:
        raise ValueError(
            f"reward weights must be finite and >= 0, got {wrong}; change the sign of the reward instead"
        )
    if not any(weights.values()):
        raise ValueError(
            f"some reward weight must be positive, got {dict(weights)}; give one component a weight"
        )


class PoolParams(BaseModel):
    """The processes that measure rewards.

    Attributes:
        workers: processes; 0 measures in this one: the same values, but nothing can stop a reward that hangs.
        timeout_seconds: limit of one chunk; a process that passes it is killed and replaced.
        chunk_size: samples per call.
        cache_size: values that are kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workers: int = Field(ge=0)
    timeout_seconds: float = Field(gt=0, allow_inf_nan=False)
    chunk_size: int = Field(ge=1)
    cache_size: int = Field(ge=0)
