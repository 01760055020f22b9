"""One layer of the graph transformer: nodes attend to nodes under their pairs, pairs read their nodes, the whole reads both.

How this differs from public versions: a pair of nodes is one row and not two, so that what comes out of the layer is symmetric
by construction and half as much is computed; the pairs steer each head's scores (FiLM: arXiv 1709.07871) and not each channel,
so that no n x n x width tensor exists. No dropout: sampling and scoring must be of one distribution.

Axes: B graphs, n nodes, M pairs; D, E, Y the widths of a node, a pair, the whole; H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.molecules.entries import GraphPrompts, pair_index, pair_lookup


@dataclass(frozen=True)
class GraphState:
    """What a layer reads and returns: nodes [B, n, D], pairs [B, M, E], whole [B, Y]; padding holds anything finite."""

    nodes: Tensor
    pairs: Tensor
    whole: Tensor


@dataclass(frozen=True)
class GraphLayout:
    """Which rows belong together.

    Attributes:
        is_node: bool [B, n].
        is_pair: bool [B, M].
        ends: int64 [2, M], the nodes of each pair.
        lookup: int64 [n * n], the pair of two nodes; M for a node with itself.
    """

    is_node: Tensor
    is_pair: Tensor
    ends: Tensor
    lookup: Tensor


def layout_of(prompts: GraphPrompts) -> GraphLayout:
    """Return the layout of graphs of these sizes."""
    masks, device = prompts.masks, prompts.sizes.device
    return GraphLayout(masks.atoms, masks.bonds, pair_index(prompts.nodes, device), pair_lookup(prompts.nodes, device).flatten())


class GraphLayer(nn.Module):
    """Attention, pair update, and update of the whole, each added to what came in."""

    def __init__(self, width: int, pair_width: int, global_width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.attention = PairAttention(width, pair_width, global_width, heads)
        self.node_forward = FeedForward(width, global_width, expansion)
        self.pair_update = PairUpdate(width, pair_width, global_width)
        self.pair_forward = FeedForward(pair_width, global_width, expansion)
        self.whole_forward = nn.Sequential(
            nn.LayerNorm(width + pair_width + global_width),
            nn.Linear(width + pair_width + global_width, global_width * expansion),
            nn.ReLU(),
            nn.Linear(global_width * expansion, global_width),
        )

    def forward(self, state: GraphState, layout: GraphLayout) -> GraphState:
        """Return the state after this layer."""
        nodes = state.nodes + self.attention(state, layout)
        nodes = nodes + self.node_forward(nodes, state.whole)
        pairs = state.pairs + self.pair_update(nodes, state.whole, layout)
        pairs = pairs + self.pair_forward(pairs, state.whole)
        means = [_masked_mean(nodes, layout.is_node), _masked_mean(pairs, layout.is_pair)]
        return GraphState(nodes, pairs, state.whole + self.whole_forward(torch.cat([*means, state.whole], dim=-1)))


class PairAttention(nn.Module):
    """Attention of nodes to nodes whose scores the pairs scale and shift.

    score_h(i, j) = (q_i . k_j / sqrt(d)) * (1 + scale_h(e_ij)) + shift_h(e_ij)
    """

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
        """Return what every node reads, [B, n, D]."""
        b, n, width = state.nodes.shape
        parts = self.inputs(self.node_norm(state.nodes, state.whole)).view(b, n, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [B, H, n, d] each
        scale, shift = self._film(state, layout)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        scores = torch.addcmul(shift, scores, scale).masked_fill(~layout.is_node[:, None, None, :], -torch.inf)
        read = scores.softmax(dim=-1).to(v.dtype) @ v
        read_by_all: Tensor = self.output(read.transpose(1, 2).reshape(b, n, width))
        return read_by_all

    def _film(self, state: GraphState, layout: GraphLayout) -> tuple[Tensor, Tensor]:
        """Return 1 + scale and shift, [B, H, n, n] each."""
        film = self.film(self.pair_norm(state.pairs))
        b, n = state.nodes.shape[:2]
        film = torch.cat([film, self.loop.to(film.dtype).expand(b, 1, -1)], dim=1)
        film = torch.cat([1 + film[..., : self.heads], film[..., self.heads :]], dim=-1).index_select(1, layout.lookup)
        scale, shift = film.view(b, n, n, 2, self.heads).permute(3, 0, 4, 1, 2)
        return scale, shift


class PairUpdate(nn.Module):
    """Tell every pair of its two nodes, in no order: the product of their projections, (b + u_i) * (b + u_j)."""

    def __init__(self, width: int, pair_width: int, global_width: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.input = nn.Linear(width, pair_width)
        self.output = nn.Linear(pair_width, pair_width)

    def forward(self, nodes: Tensor, whole: Tensor, layout: GraphLayout) -> Tensor:
        """Return what every pair reads, [B, M, E]."""
        projected = self.input(self.norm(nodes, whole))
        first, second = (projected.index_select(1, end) for end in layout.ends)
        told: Tensor = self.output(first * second)
        return told


class FeedForward(nn.Module):
    """A norm and two linear maps with a ReLU between them, on every row by itself."""

    def __init__(self, width: int, global_width: int, expansion: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.body = nn.Sequential(nn.Linear(width, width * expansion), nn.ReLU(inplace=True), nn.Linear(width * expansion, width))

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Return [B, N, D] of rows [B, N, D]."""
        out: Tensor = self.body(self.norm(rows, whole))
        return out


class ModulatedNorm(nn.Module):
    """Layer norm of every row, then scaled and shifted by the whole: that is where time and size enter."""

    def __init__(self, width: int, global_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.film = nn.Linear(global_width, 2 * width)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Return [B, N, D] of rows [B, N, D] and whole [B, Y]."""
        scale, shift = self.film(whole).unsqueeze(1).chunk(2, dim=-1)
        return torch.addcmul(shift, self.norm(rows), 1 + scale)


def _masked_mean(rows: Tensor, is_counted: Tensor) -> Tensor:
    """Return the mean [B, D] over the counted rows of [B, N, D]; 0 where there are none."""
    share = is_counted / is_counted.sum(dim=1, keepdim=True).clamp(min=1)
    return (share.to(rows.dtype).unsqueeze(1) @ rows).squeeze(1)
