"""Describe a part of a step: which arms have it, and what it does at which place of the step."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.step.wire import Row


@dataclass(frozen=True)
class StepPart:
    """A part that the step of some arms has: its rows (box, outputs, function, inputs), by the place where they stand.

    Attributes:
        is_in: whether an arm with these parameters has it.
        alone: in a step that is made by itself, without a training around it.
        after_sampling: between the samples and what they lead to.
        after_reward: between the rewards and the advantages.
        after_advantage: between the advantages and the experience.
        loss: terms of the loss, and what they read.
        before_update: between the gradients and the update.
        after_update: behind the update.
    """

    is_in: Callable[[AlgorithmParams], bool]
    alone: tuple[Row, ...] = ()
    after_sampling: tuple[Row, ...] = ()
    after_reward: tuple[Row, ...] = ()
    after_advantage: tuple[Row, ...] = ()
    loss: tuple[Row, ...] = ()
    before_update: tuple[Row, ...] = ()
    after_update: tuple[Row, ...] = ()
