"""Parameters of the molecule task's prompts and of the samples of its evaluation."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION

Condition = Literal["qed", "logp", "sa"]


class GraphPromptParams(BaseModel):
    """Parameters of the prompt: what the network is told before it draws a graph (``molecules.prompt``).

    Attributes:
        conditions: properties of the molecule of the prompt that are told beside its size, each in units of its spread over the
            training split.
        max_atoms: nodes that there is room for; null takes the largest molecule of the data. A larger molecule is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    conditions: tuple[Condition, ...]
    max_atoms: Annotated[int, Field(ge=1)] | None

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if len(set(self.conditions)) != len(self.conditions):
            raise ValueError(
                f"molecules.prompt.conditions must name each property once, got {list(self.conditions)}; drop the repetitions"
            )
        return self


class PredictParams(BaseModel):
    """Which model draws which molecules (``molecules.predict``).

    Attributes:
        arm: whose newest model it is.
        sizes: numbers of heavy atoms.
        count: molecules of each size.
        targets: property -> wanted value, of a model whose prompts name properties.
        seed: of the molecules.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    count: int = Field(ge=1)
    targets: Mapping[str, float] = Field(default_factory=dict)
    seed: int = Field(ge=0)


class SamplingParams(BaseModel):
    """How graphs are drawn for validation, audit and evaluation (``molecules.sampling``).

    Attributes:
        temperature: divides the logits of x0; that of training is ``molecules.training.temperature``.
        prompts: of a split that are answered, drawn by the seed; all of it where it has fewer.
        graphs_at_once: drawn beside each other; bounds the memory.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    prompts: Annotated[int, Field(ge=1)]
    graphs_at_once: Annotated[int, EXECUTION, Field(ge=1)]
