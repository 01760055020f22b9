"""Groups and rollouts of two samples of three decisions, to store and to replay."""

import dataclasses
import math

import torch

from grpo_pipeline.core.training.stored_groups import StoredGroup, split_groups
from grpo_pipeline.core.types import Rollouts

G, L = 2, 3


def group(row=0, *, step=0, signal=1.0, shape=(G, L), dtype=torch.float32):
    actions = torch.arange(math.prod(shape)).reshape(shape) + 100 * row
    logprobs = -torch.linspace(0.1, 1.7, math.prod(shape), dtype=dtype).reshape(shape) - row
    return StoredGroup(row, actions, logprobs, actions % 3 != 2, step=step, temperature=0.7 + row / 3, signal=signal)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@dataclasses.dataclass(frozen=True)
class Marked(Rollouts):
    """Rollouts of a task that says more about a decision, or does not."""

    marks: torch.Tensor | None = None


def rollouts(seed=0, dtype=torch.float32, marks=True):
    stream = generator(seed)
    actions = torch.randint(0, 9, (4, G, L), generator=stream)
    logprobs = -torch.rand(4, G, L, generator=stream, dtype=dtype)
    more = actions[..., None].to(torch.uint8) + 10 if marks else None
    return Marked(actions, logprobs, torch.rand(4, G, L, generator=stream) > 0.3, marks=more)


def split(old, rows=(40, 41, 42, 43), signal=(0.5, 1.0, 2.0, 3.0)):
    return split_groups(old, rows, signal=torch.tensor(signal), step=6, temperature=0.8)
