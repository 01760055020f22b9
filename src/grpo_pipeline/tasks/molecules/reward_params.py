"""Parameters of the molecule task's rewards (``molecules.rewards``). Values live in YAML."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

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

Part = Literal[
    "validity",
    "qed",
    "logp",
    "accessibility",
    "size",
    "wanted",
    "forbidden",
    "novelty",
    "uniqueness",
    "batch_uniqueness",
]
# Components without a measurement: they follow from the graph, the training set, the group or the batch.
AT_ONCE = ("validity", "novelty", "uniqueness", "batch_uniqueness")
FUNCTIONS = "grpo_pipeline.tasks.molecules.property_rewards"
MEASURED = {
    name: f"{FUNCTIONS}:{name}"
    for name in ("qed", "logp", "accessibility", "size", "wanted", "forbidden")
}
SECTIONS = ("logp", "size", "wanted", "forbidden")
Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]


class WindowParams(BaseModel):
    """A window of a property: 1 from ``low`` to ``high``, falling to 0 over ``width`` on both sides.

    Attributes:
        low: where the window begins.
        high: where it ends.
        width: distance from its edges over which the value falls to 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    low: float
    high: float
    width: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _is_a_window(self) -> Self:
        if self.low > self.high:
            raise ValueError(
                f"low must be at most high, got {self.low} and {self.high}; exchange them"
            )
        return self


class InvalidParams(BaseModel):
    """Values that the components of the reward, except validity, take for a molecule that is not valid.

    Attributes:
        rule: ``penalty``: each part is that number. ``exclude``: each part is "not scored": the sample leaves the statistics of
            its group, and its advantage is exactly 0. ``group_mean``: each part is the mean of its group's valid molecules.
        penalty: value of a part before its weight; null with the other two rules.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: Literal["exclude", "penalty", "group_mean"]
    penalty: Annotated[float, Field(allow_inf_nan=False)] | None

    @model_validator(mode="after")
    def _check_penalty(self) -> Self:
        if (self.penalty is None) == (self.rule == "penalty"):
            raise ValueError(
                f"penalty must be a number for rule 'penalty' and null for the others, got {self.penalty} for {self.rule!r}; "
                "say what an invalid molecule is worth"
            )
        return self


class MoleculeRewardParams(BaseModel):
    """The named components of the reward, their weights, the rules for invalid molecules and failures, and the processes.

    Attributes:
        weights: part -> weight; a part that is absent, or has weight 0, is not computed.
        logp: the window of logP; read only if that part has a weight, as are the next three.
        size: the window of the number of heavy atoms.
        wanted: SMARTS patterns; the part is the share of them that occur.
        forbidden: SMARTS patterns; the part is 1 if none of them occurs.
        own: user-defined rewards; null for none.
        invalid: rule for molecules that are not valid.
        failure: rule for valid molecules whose reward could not be measured.
        pool: the processes that measure the rewards.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weights: dict[Part, float]
    logp: WindowParams | None
    size: WindowParams | None
    wanted: Patterns | None
    forbidden: Patterns | None
    own: dict[str, OwnRewardParams] | None
    invalid: InvalidParams
    failure: FailureParams
    pool: Annotated[PoolParams, EXECUTION]

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        check_own_names(self.own or {}, (*AT_ONCE, *MEASURED))
        check_weights(self.named_weights)
        for name, weight in self.component_weights.items():
            if name in SECTIONS and getattr(self, name) is None:
                raise ValueError(
                    f"molecules.rewards.{name} must be given while {name} has the weight {weight:g}, got null; give "
                    "it, or take the part out of molecules.rewards.weights"
                )
        if self.invalid.rule == "exclude" and self.weights.get("validity"):
            raise ValueError(
                "molecules.rewards.weights must not have validity with invalid.rule: exclude, got both: what is left out "
                "is compared with nothing; use rule: penalty"
            )
        if self.invalid.rule == "group_mean" and not self.weights.get("validity"):
            raise ValueError(
                "molecules.rewards.weights must have validity with invalid.rule: group_mean, got none: a molecule that is not "
                "valid would be worth as much as the others; give validity a weight"
            )
        self._check_patterns()
        return self

    def _check_patterns(self) -> None:
        patterns = [*(self.wanted or ()), *(self.forbidden or ())]
        if patterns:
            # RDKit is an extra: the parameters of other tasks are read without it.
            from grpo_pipeline.tasks.molecules.property_rewards import read_pattern

            for pattern in patterns:
                read_pattern(pattern)

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
        return self.named_weights | {
            name: 0.0 for name in (*AT_ONCE, *MEASURED) if name not in self.weights
        }

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """Select the measures of the user-defined components."""
        return {
            name: measure for name, measure in self.measures.items() if name in (self.own or {})
        }

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """Build the function and options of every measured component, once, since a digest reads the function's file."""
        options: dict[str, dict[str, Any]] = {
            name: section.model_dump()
            for name in ("logp", "size")
            if (section := getattr(self, name)) is not None
        }
        options |= {
            name: {"patterns": list(getattr(self, name) or ())} for name in ("wanted", "forbidden")
        }
        functions = {name: Measure(path, options.get(name, {})) for name, path in MEASURED.items()}
        functions |= {
            name: Measure(reward.function, reward.options)
            for name, reward in (self.own or {}).items()
        }
        return {name: functions[name] for name in self.component_weights if name in functions}
