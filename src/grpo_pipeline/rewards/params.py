"""Declare the parameters of rewards that every task shares: terms that functions measure, and the processes that call these."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.core.objective.part import Part, Weighed
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measure_check import check_measure

Failure = float | Literal["exclude", "stop"]


class OwnReward(Weighed):
    """A user-defined term, by path: ``(subjects, references, **options) -> one number per subject``.

    It may name ``prompts``, ``answers`` and ``columns``, or be called by name, ``(prompts, completions, **kwargs)``.

    Attributes:
        function: import path, ``package.module:function``.
        options: keyword arguments of the function.
    """

    function: str
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def measure(self) -> Measure:
        """The function with its options; whoever wrote it, a model or a server may stand behind it and hang."""
        return Measure(self.function, self.options, may_hang=True)

    @model_validator(mode="after")
    def _check_function(self) -> Self:
        check_measure(self.measure)
        return self


def _present(values: Any) -> Any:
    """Leave out what is null: it takes away what a base has."""
    if not isinstance(values, Mapping):
        return values
    return {name: value for name, value in values.items() if value is not None}


class MeasuredReward(Part):
    """A reward whose named terms are weighed and added up: those of the task in the order of its fields, then the user's own.

    Attributes:
        own: user-defined terms, by name.
    """

    functions: ClassVar[Mapping[str, str]]
    """Term -> import path of the function that measures it; its fields, except the weight, are the function's options."""
    may_hang: ClassVar[tuple[str, ...]] = ()
    """Terms of the project whose options decide how long they take."""
    beside: ClassVar[tuple[str, ...]] = ("own",)
    """Fields that are no terms."""

    own: Annotated[dict[str, OwnReward], BeforeValidator(_present)] = Field(default_factory=dict)

    @classmethod
    def names(cls) -> list[str]:
        """List the terms that a task has."""
        return [name for name in cls.model_fields if name not in cls.beside]

    @property
    def terms(self) -> dict[str, Weighed]:
        """Map the name of each term to its parameters, in the order of the sum."""
        found = {name: getattr(self, name) for name in self.names()}
        return {name: term for name, term in found.items() if term is not None} | self.own

    @property
    def weights(self) -> dict[str, float]:
        """Map each term to its weight, in the order of the sum."""
        return {name: term.weight for name, term in self.terms.items()}

    @property
    def all_weights(self) -> dict[str, float]:
        """Map each term to its weight, and then those that are absent to 0."""
        return self.weights | {name: 0.0 for name in self.names() if name not in self.terms}

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """Build the function and options of every measured term, once, since a digest reads the function's file."""
        return {
            name: term.measure
            if isinstance(term, OwnReward)
            else Measure(
                self.functions[name],
                term.model_dump(mode="json", exclude={"weight"}),
                may_hang=name in self.may_hang,
            )
            for name, term in self.terms.items()
            if name in self.own or name in self.functions
        }

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """Select the measures of the user-defined terms."""
        return {name: self.measures[name] for name in self.own}

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        for name in self.own:
            if name in self.names() or not name.isidentifier():
                raise ValueError(
                    f"the name of an own reward must be a new word, got {name!r}; {sorted(self.names())} are taken"
                )
        if not self.terms:
            raise ValueError(
                f"a reward must have a term, got none; give a weight to one of {self.names()}, or to one of your own"
            )
        return self


class PoolParams(BaseModel):
    """The processes that measure the terms of a reward, and the rule where they cannot (``<task>.reward_pool``).

    Attributes:
        workers: processes; 0 measures in this one: the same values, but nothing can stop a reward that hangs.
        timeout_seconds: limit of one chunk; a process that passes it is killed and replaced.
        chunk_size: samples per call.
        cache_size: values that are kept.
        failure: value of a term that could not be measured: a number counts before the term's weight, ``exclude`` leaves the
            sample out of its group, ``stop`` ends the run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workers: Annotated[int, EXECUTION] = Field(ge=0)
    timeout_seconds: Annotated[float, EXECUTION] = Field(gt=0)
    chunk_size: Annotated[int, EXECUTION] = Field(ge=1)
    cache_size: Annotated[int, EXECUTION] = Field(ge=0)
    failure: Failure = "exclude"
