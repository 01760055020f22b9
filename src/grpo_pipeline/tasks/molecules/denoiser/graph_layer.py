"""Compute a layer of the graph transformer.

Nodes attend to nodes with scores that their pairs modulate, pairs read their nodes, the whole graph reads both.

How this differs from public versions: a pair of nodes is one row and not two. The layer's output is symmetric by construction, at
half the cost. There is no dropout: sampling and scoring must have the same distribution.

Axes: B graphs, n nodes, M pairs; D, E, Y the widths of a node, a pair, the whole; H heads.
"""

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.molecules.denoiser.graph_layout import GraphLayout, GraphState
from grpo_pipeline.tasks.molecules.denoiser.modulated_norm import ModulatedNorm, added
from grpo_pipeline.tasks.molecules.denoiser.pair_attention import PairAttention

EXPANSION = 2
"""The feed-forward parts are this many times as wide as what they read."""


class GraphLayer(nn.Module):
    """Attention, pair update, and update of the whole graph, each added to its input."""

    def __init__(self, width: int, pair_width: int, global_width: int, heads: int) -> None:
        super().__init__()
        self.attention = PairAttention(width, pair_width, global_width, heads)
        self.node_forward = FeedForward(width, global_width)
        self.pair_update = PairUpdate(width, pair_width, global_width)
        self.pair_forward = FeedForward(pair_width, global_width)
        self.whole_forward = nn.Sequential(
            nn.LayerNorm(width + pair_width + global_width),
            nn.Linear(width + pair_width + global_width, global_width * EXPANSION),
            nn.ReLU(),
            nn.Linear(global_width * EXPANSION, global_width),
        )

    def forward(self, state: GraphState, layout: GraphLayout) -> GraphState:
        """Return the state after this layer."""
        nodes = self.node_forward(self.attention(state, layout), state.whole)
        pairs = self.pair_forward(
            self.pair_update(state.pairs, nodes, state.whole, layout), state.whole
        )
        means = [_mean(layout.node_share, nodes), _mean(layout.pair_share, pairs)]  # [B, D], [B, E]
        return GraphState(
            nodes, pairs, state.whole + self.whole_forward(torch.cat([*means, state.whole], dim=-1))
        )


class PairUpdate(nn.Module):
    """Update of every pair by its two nodes, in no order: the product of their projections, (b + u_i) * (b + u_j)."""

    def __init__(self, width: int, pair_width: int, global_width: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.input = nn.Linear(width, pair_width)
        self.output = nn.Linear(pair_width, pair_width)

    def forward(self, pairs: Tensor, nodes: Tensor, whole: Tensor, layout: GraphLayout) -> Tensor:
        """Update the pairs by their nodes, [B, M, E]."""
        projected = self.input(self.norm(nodes, whole))  # [B, n, E]
        first, second = (projected.index_select(1, end) for end in layout.ends)  # [B, M, E]
        return added(pairs, self.output, first * second)


class FeedForward(nn.Module):
    """A norm and two linear maps with a ReLU between them, on every row by itself, added to the row."""

    def __init__(self, width: int, global_width: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.input = nn.Linear(width, width * EXPANSION)
        self.output = nn.Linear(width * EXPANSION, width)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Compute [B, N, D] from rows [B, N, D]."""
        flat = self.input(self.norm(rows, whole).flatten(0, 1)).relu_()  # [B * N, C]
        return added(rows, self.output, flat.view(*rows.shape[:2], flat.shape[-1]))


def _mean(share: Tensor, rows: Tensor) -> Tensor:
    """Compute the weighted mean [B, D] of rows [B, N, D]."""
    return torch.bmm(share.to(rows.dtype), rows).squeeze(1)  # [B, 1, N] @ [B, N, D] -> [B, D]
