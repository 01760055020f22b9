"""Describe a part of a step: which arms have it, and what it does at which place of the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.wire import Row
from grpo_pipeline.tasks.base import Task

# Where a part can act, in the order in which a step meets them.
Place = Literal[
    "alone",  # in a step that is made by itself, without a training around it
    "after_sampling",  # between the samples and what they lead to
    "after_reward",  # between the rewards and the advantages
    "after_advantage",  # between the advantages and the experience
    "loss",  # terms of the loss, and what they read
    "before_update",  # between the gradients and the update
    "after_update",  # behind the update
]

# What a term of the loss counts in a piece of a batch: a float64 scalar, by whose sum over the pieces the term is divided.
Count = Callable[[AlgorithmParams, Task, Experience], Tensor]


@dataclass(frozen=True, eq=False)
class StepPart:
    """A part that the step of some arms has.

    Attributes:
        is_in: whether an arm with these parameters has it.
        rows: place -> what it does there, each row (box, outputs, function, inputs).
        counts: term of the loss -> what it counts.
    """

    is_in: Callable[[AlgorithmParams], bool]
    rows: Mapping[Place, tuple[Row, ...]]
    counts: Mapping[str, Count] = field(default_factory=dict)
