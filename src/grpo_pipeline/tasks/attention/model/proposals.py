"""Choose where the point sets of an arm come from: the policy's map, or a fixed proposal that it is held against."""

import torch

from grpo_pipeline.core.training.precision import at_least_float32
from grpo_pipeline.tasks.attention.batch import AttentionContext
from grpo_pipeline.tasks.attention.model.baselines import oracle_logits
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.point_sets import SetLogits
from grpo_pipeline.tasks.base import Proposal


def proposal_logits(
    policy: AttentionModel,
    context: AttentionContext,
    proposal: Proposal,
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
        zeros = torch.zeros(
            context.cells.shape, dtype=context.features.dtype, device=context.cells.device
        )
        return SetLogits(at_least_float32(zeros))
    if context.lesion_cells is None:
        raise ValueError(
            "the batch must hold the lesion for proposal: oracle, got one without; make it from task.with_oracle(data)"
        )
    return SetLogits(oracle_logits(context.lesion_cells, context.cells))
