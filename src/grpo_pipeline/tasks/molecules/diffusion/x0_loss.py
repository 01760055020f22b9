"""Compute the supervised loss: the cross-entropy of x0 at a noisy graph."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.params import X0LossParams
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entry_logprobs
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts


def x0_counts(prompts: GraphPrompts) -> Tensor:
    """Count the entries that each part of the loss averages, float64 [3]: nodes, nodes, pairs of nodes, without padding."""
    return torch.stack([mask.sum() for mask in prompts.masks]).double()


def x0_loss(
    logits: Components[Tensor],
    clean: Components[Tensor],
    masks: Components[Tensor],
    weights: X0LossParams,
    *,
    counts: Tensor,
) -> Tensor:
    """Compute the weighted cross-entropy of x0, in nats.

        sum over components of weight * (sum over entries of -log softmax(logits)[x0] / count)

    Each component is a mean over its own entries of all graphs, each bond once. Source: DiGress, arXiv 2209.14734; charges: MiDi,
    arXiv 2302.09048.

    Args:
        logits: [B, N, K] each.
        clean: x0, integers [B, N] each.
        masks: which entries belong to the graph, bool [B, N] each.
        weights: weights of the components.
        counts: denominators [3], the ``x0_counts`` of the whole batch. A part without entries is 0.

    Returns:
        A scalar with gradient.
    """
    log_probs = entry_logprobs(logits.each(lambda z: z.log_softmax(dim=-1)), clean, masks)
    sums = torch.stack([-part.sum() for part in log_probs])  # [3]
    scale = torch.tensor(
        [weights.atoms, weights.charges, weights.bonds], dtype=sums.dtype, device=sums.device
    )  # [3]
    return (scale * sums / counts.to(sums).clamp(min=1)).sum()
