"""Parameters of the molecule task's prompts and of the samples of its evaluation."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.tasks.params import Section

Condition = Literal["qed", "logp", "sa"]


class GraphPromptParams(Section):
    """Parameters of the prompt, the network's input before it draws a graph (``molecules.prompt``).

    Attributes:
        conditions: properties of the prompt's molecule that the network reads beside its size, each in units of its spread over
            the training split.
    """

    conditions: tuple[Condition, ...]

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if len(set(self.conditions)) != len(self.conditions):
            raise ValueError(
                f"molecules.prompt.conditions must name each property once, got {list(self.conditions)}; drop the repetitions"
            )
        return self


class PredictParams(Section):
    """The model and the molecules of a prediction (``molecules.predict``).

    Attributes:
        arm: the arm whose newest model draws.
        sizes: numbers of heavy atoms.
        count: number of molecules of each size.
        targets: property -> wanted value, if the model's prompts name properties.
        seed: seed of the molecules.
    """

    arm: str
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    count: int = Field(ge=1)
    targets: Mapping[str, float] = Field(default_factory=dict)
    seed: int = Field(ge=0)


class SamplingParams(Section):
    """How graphs are drawn for validation, audit and evaluation (``molecules.sampling``).

    Attributes:
        prompts: number of prompts of a split, drawn by the seed; all if the split has fewer.
        graphs_at_once: number of graphs that are drawn at once; bounds the memory.
    """

    prompts: Annotated[int, Field(ge=1)]
    graphs_at_once: Annotated[int, EXECUTION, Field(ge=1)]
