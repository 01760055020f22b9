"""Declare the parameters of the reward: its terms by name, each with its weight (``molecules.reward``)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.rewards.params import MeasuredReward

MEASURED = ("logp", "qed", "accessibility", "size", "wanted", "forbidden")
PACKAGE = "grpo_pipeline.tasks.molecules.rewards"


class WindowReward(Weighed):
    """A window of a property: 1 from ``low`` to ``high``, falling to 0 over ``width`` on both sides.

    Attributes:
        low: where the window begins.
        high: where it ends.
        width: distance from its edges over which the value falls to 0.
    """

    low: float
    high: float
    width: float = Field(gt=0)

    @model_validator(mode="after")
    def _is_a_window(self) -> Self:
        if self.low > self.high:
            raise ValueError(
                f"low must be at most high, got {self.low} and {self.high}; exchange them"
            )
        return self


class PatternReward(Weighed):
    """Parts of molecules.

    Attributes:
        patterns: SMARTS of the parts.
    """

    patterns: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        # RDKit is an extra: the parameters of other tasks are read without it.
        from grpo_pipeline.tasks.molecules.rewards.reading import read_pattern

        for pattern in self.patterns:
            read_pattern(pattern)
        return self


class MoleculeReward(MeasuredReward):
    """The named terms of the reward, weighed and added up (``molecules.reward``; docs/molecules/rewards.md).

    Attributes:
        validity: 1 for a valid graph.
        logp: logP in a window.
        uniqueness: no other sample of the group is the same molecule.
        qed: drug-likeness.
        accessibility: how easy the molecule is to make.
        size: number of heavy atoms in a window.
        wanted: share of the patterns that occur.
        forbidden: 1 if none of the patterns occurs.
        batch_uniqueness: no other sample of all groups is the same molecule.
        novelty: 1 for a molecule that is not in the training split.
        invalid_penalty: value that every term but ``validity`` has for a graph that is not valid, before its weight. Null: such
            a graph has the mean of its group's valid molecules, so that ``validity`` alone judges it; without ``validity`` it
            leaves its group.
    """

    functions: ClassVar = {name: f"{PACKAGE}.{name}:{name}" for name in MEASURED}
    beside: ClassVar = ("own", "invalid_penalty")

    validity: Weighed | None = None
    logp: WindowReward | None = None
    uniqueness: Weighed | None = None
    qed: Weighed | None = None
    accessibility: Weighed | None = None
    size: WindowReward | None = None
    wanted: PatternReward | None = None
    forbidden: PatternReward | None = None
    batch_uniqueness: Weighed | None = None
    novelty: Weighed | None = None
    invalid_penalty: float | None = None

    @property
    def invalid(self) -> float | Literal["group_mean", "exclude"]:
        """The rule for the terms of a graph that is not valid."""
        if self.invalid_penalty is not None:
            return self.invalid_penalty
        return "group_mean" if self.validity else "exclude"
