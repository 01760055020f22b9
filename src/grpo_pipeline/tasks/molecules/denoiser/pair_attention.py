"""Attend from nodes to nodes with scores that the pairs scale and shift.

    score_h(i, j) = (q_i . k_j / sqrt(d)) * (1 + scale_h(e_ij)) + shift_h(e_ij)

How this differs from public versions: the pairs modulate each head's scores (FiLM: arXiv 1709.07871), not each channel. So no n x
n x width tensor exists. d is the width of a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.core.training.precision import at_least_float32
from grpo_pipeline.tasks.molecules.denoiser.graph_layout import GraphLayout, GraphState
from grpo_pipeline.tasks.molecules.denoiser.modulated_norm import ModulatedNorm, added, normalised

# Below this many nodes torch's softmax on the CPU is not vectorised.
FEW = 16


class PairAttention(nn.Module):
    """Attention of every node to all nodes of its graph, added to the nodes."""

    def __init__(self, width: int, pair_width: int, global_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.node_norm = ModulatedNorm(width, global_width)
        self.pair_norm = nn.LayerNorm(pair_width)
        self.inputs = nn.Linear(width, 3 * width)
        self.film = nn.Linear(pair_width, 2 * heads)
        self.loop = nn.Parameter(torch.zeros(2 * heads))  # for a node with itself, which is no pair
        self.output = nn.Linear(width, width)

    def forward(self, state: GraphState, layout: GraphLayout) -> Tensor:
        """Attend to all nodes, and add the result to the nodes, [B, n, D]."""
        b, n, width = state.nodes.shape
        d = width // self.heads
        # parts: [B, n, 3, H, d]; q, k and v: [B * H, n, d], one batched product for all heads.
        parts = self.inputs(self.node_norm(state.nodes, state.whole)).view(b, n, 3, self.heads, d)
        q, k, v = parts.permute(2, 0, 3, 1, 4).reshape(3, b * self.heads, n, d).unbind()
        scale, shift = self._film(state, layout)  # [B, H, n, n]
        scores = torch.bmm(q, k.transpose(1, 2)).view(b, self.heads, n, n)  # [B, H, n, n]
        scores = torch.addcmul(shift, scores, scale, value=d**-0.5)
        # No node attends to padding; the output of padding itself is finite and unused.
        scores = scores.masked_fill_(~layout.is_node[:, None, None, :], -torch.inf)
        read = weighted(scores.view(b * self.heads, n, n), v).view(b, self.heads, n, d)
        # [B, H, n, d] -> [B, n, H * d], the heads side by side.
        return added(state.nodes, self.output, read.transpose(1, 2).reshape(b, n, width))

    def _film(self, state: GraphState, layout: GraphLayout) -> tuple[Tensor, Tensor]:
        """Compute 1 + scale and shift, [B, H, n, n] each."""
        # The first H outputs are scales and begin at 1, the others are shifts and begin at 0.
        one = torch.cat(
            [torch.ones_like(self.loop[: self.heads]), torch.zeros_like(self.loop[self.heads :])]
        )  # [2 * H]
        # The norm's own scale and shift as part of the linear map: one pass over the pairs less.
        bias = torch.mv(self.film.weight, self.pair_norm.bias) + self.film.bias + one
        film = functional.linear(
            normalised(state.pairs), self.film.weight * self.pair_norm.weight, bias
        )  # [B, M, 2 * H]
        b, n = state.nodes.shape[:2]
        loop = (self.loop + one).to(film.dtype).expand(b, 1, -1)  # [B, 1, 2 * H]
        film = torch.cat([film, loop], dim=1).index_select(1, layout.lookup)  # [B, n * n, 2 * H]
        # Same memory layout as the scores: mixed layouts make the next operations several times slower.
        scale, shift = (
            film.view(b, n, n, 2, self.heads).permute(3, 0, 4, 1, 2).contiguous().unbind()
        )  # [B, H, n, n]
        return scale, shift


def weighted(scores: Tensor, values: Tensor) -> Tensor:
    """Compute softmax(scores) @ values, [R, n, d] of [R, n, m] and [R, m, d]; each row needs a score above -inf."""
    scores = at_least_float32(scores)
    if scores.shape[-1] >= FEW or scores.device.type != "cpu":
        return torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    # A softmax that divides after the product; the maximum is subtracted first, so that nothing overflows.
    weights = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp_()
    total = weights.sum(dim=-1, keepdim=True)  # [R, n, 1]
    return torch.bmm(weights.to(values.dtype), values) / total.to(values.dtype)
