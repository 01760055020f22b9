"""Choose which of the G samples of a core the decoders learn from.

The choice is an index: no gradient flows through it, and what is chosen keeps its own graph.
"""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes


def best_samples(total: Tensor) -> Tensor:
    """Return the number of the sample with the highest reward of each group, the first of equals: [P, G] -> int64 [P].

    A sample that was not scored (NaN) is never chosen where another one was.
    """
    return total.detach().nan_to_num(nan=-torch.inf).argmax(dim=1)


def last_samples(label: Tensor) -> Tensor:
    """Return the number of the last sample of each group, [P, G] -> int64 [P]."""
    return torch.full((len(label),), label.shape[1] - 1, device=label.device)


def take_samples(
    batch: AttentionBatch, outcomes: Outcomes, chosen: Tensor
) -> tuple[AttentionBatch, Outcomes]:
    """Return targets and outcomes of one sample per core, as groups of one.

    Args:
        batch: targets replicated to [P, G].
        outcomes: of the same samples; its rollouts are taken along.
        chosen: int64 [P], 0 .. G-1.
    """
    taken = {field.name: _take(getattr(outcomes, field.name), chosen) for field in fields(outcomes)}
    return replace(batch, label=batch.label[:, :1], involvement=batch.involvement[:, :1]), Outcomes(
        **taken
    )


def _take(value: Any, chosen: Tensor) -> Any:
    if isinstance(value, Rollouts):
        return Rollouts(
            *(_take(part, chosen) for part in (value.actions, value.logprobs, value.is_valid))
        )
    if isinstance(value, Tensor):
        return value[torch.arange(len(chosen), device=chosen.device), chosen][:, None]
    return value
