"""Where the point sets of a training arm come from: the policy's map, or a fixed proposal that the policy is held against."""

from dataclasses import replace
from typing import Literal

import torch

from grpo_pipeline.core.precision import at_least_float32
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionContext, AttentionData
from grpo_pipeline.tasks.attention.model import AttentionModel
from grpo_pipeline.tasks.attention.points import oracle_logits
from grpo_pipeline.tasks.attention.sets import SetLogits


def proposal_logits(
    policy: AttentionModel, context: AttentionContext, proposal: Literal["policy", "uniform", "oracle"]
) -> SetLogits:
    """Return the logits that points are drawn from.

    ``policy``: the policy's attention map, and its stop head where it has one; the others always draw k points. ``uniform``:
    0 everywhere; ``oracle``: 50 nats more inside the lesion, so that the points lie there while it has cells left, and
    uniform in the region where a core has no known lesion.

    Raises:
        ValueError: for ``oracle`` on a batch that does not hold the lesion.
    """
    if proposal == "policy":
        return policy.propose(context)[0]
    if proposal == "uniform":
        zeros = torch.zeros(context.cells.shape, dtype=context.features.dtype, device=context.cells.device)
        return SetLogits(at_least_float32(zeros))
    if context.lesion_cells is None:
        raise ValueError(
            "the batch must hold the lesion for proposal: oracle, got one without; make it from task.with_oracle(data)"
        )
    return SetLogits(oracle_logits(context.lesion_cells, context.cells))


def empty_sets(n_prompts: int, group_size: int, *, device: torch.device) -> Rollouts:
    """Return G sets of no point for each prompt: actions [P, G, 0]."""
    actions = torch.empty(n_prompts, group_size, 0, dtype=torch.int64, device=device)
    return Rollouts(
        actions=actions,
        logprobs=torch.empty(actions.shape, device=device),
        is_valid=torch.empty(actions.shape, dtype=torch.bool, device=device),
    )


def show_lesion(data: AttentionData) -> AttentionData:
    """Return the data with batches that hold the cells of the lesion.

    Raises:
        ValueError: if no core has a lesion outline: the oracle would be the uniform proposal under another name.
    """
    if not data.examples.lesion.any():
        raise ValueError(
            f"proposal: oracle must have cores with a lesion outline, got none among {len(data.examples.table)}; name the "
            "outlines in attention.data.columns.lesion_mask, or use proposal: uniform"
        )
    return replace(data, shows_lesion=True)
