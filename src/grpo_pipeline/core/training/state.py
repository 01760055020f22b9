"""State of a training, replaced by a new one at every step: weights, optimiser, counters and random streams."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn
from torch.optim import Optimizer

from grpo_pipeline.core.training.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class TrainState:
    """Everything that training changes; ``dataclasses.replace`` moves the counters on.

    The modules inside are mutable and shared between successive states: only ``training.optim``, ``snapshot.restore`` and
    ``core.training.reference.update_reference`` (the reference alone) write to them. The replay buffer is mutable too.

    Attributes:
        policy: the trained module.
        optimizer: the optimiser over the policy's parameters.
        reference: frozen copy of the policy, as it was at the start of RL or as a ``ReferenceUpdate`` moves it on, or None.
        step: batches used so far; the next batch has this number.
        epoch: passes over the data completed so far.
        generator_seed: seed from which every step's generator is derived.
        total_steps: batches of the whole run, the horizon of the schedules.
        replay: informative groups of past batches, or None.
        coefficients: numbers that training adapts, by name, such as the weight of the entropy.
        precision: in which its networks compute within a step, see ``core.training.precision``; the weights are float32.
    """

    policy: nn.Module
    optimizer: Optimizer
    reference: nn.Module | None
    step: int
    epoch: int
    generator_seed: int
    total_steps: int = 1
    replay: ReplayBuffer | None = None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    precision: Literal["float32", "bf16"] = "float32"
