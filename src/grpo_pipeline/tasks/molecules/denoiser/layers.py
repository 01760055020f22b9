"""One layer of the graph transformer: nodes attend to nodes under their pairs, pairs read their nodes, the whole reads both.

How this differs from public versions: a pair of nodes is one row and not two, so that what comes out of the layer is symmetric
by construction and half as much is computed. No dropout: sampling and scoring must be of one distribution.

Axes: B graphs, n nodes, M pairs; D, E, Y the widths of a node, a pair, the whole; H heads.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from grpo_pipeline.core.training.precision import at_least_float32
from grpo_pipeline.tasks.molecules.graphs.graphs import GraphPrompts, pair_index, pair_lookup

# The layout of graphs in a batch: the tensors that a layer reads and returns, and which of their rows belong together.
#
# Axes: B graphs, n nodes, M pairs; D, E, Y the widths of a node, a pair, the whole.


@dataclass(frozen=True)
class GraphState:
    """Input and output of a layer: nodes [B, n, D], pairs [B, M, E], whole [B, Y]; padding holds anything finite."""

    nodes: Tensor
    pairs: Tensor
    whole: Tensor


@dataclass(frozen=True)
class GraphLayout:
    """Which rows belong together.

    Attributes:
        is_node: bool [B, n].
        node_share: [B, 1, n], weights of the mean over the nodes of a graph: 0 for padding, sum 1.
        pair_share: [B, 1, M], the same for its pairs; sum 0 where there are none.
        ends: int64 [2, M], the nodes of each pair.
        lookup: int64 [n * n], the pair of two nodes; M for a node with itself.
    """

    is_node: Tensor
    node_share: Tensor
    pair_share: Tensor
    ends: Tensor
    lookup: Tensor


def layout_of(prompts: GraphPrompts, dtype: torch.dtype) -> GraphLayout:
    """Return the layout of graphs of these sizes; weights of means in the dtype of the network."""
    masks, device = prompts.masks, prompts.sizes.device
    node_share, pair_share = (_share(mask).to(dtype) for mask in (masks.atoms, masks.bonds))
    lookup = pair_lookup(prompts.nodes, device).flatten()
    return GraphLayout(
        masks.atoms, node_share, pair_share, pair_index(prompts.nodes, device), lookup
    )


def _share(is_counted: Tensor) -> Tensor:
    return (is_counted / is_counted.sum(dim=1, keepdim=True).clamp(min=1)).unsqueeze(1)


# Layer norm of rows, and what is added to them: exact, in few passes over memory.
#
# How this differs from ``torch.nn``: torch's layer norm on the CPU takes several times as long as its arithmetic for rows of 64
# or 128 numbers; here the forward pass is a few vectorised passes in the order of the formula (mean, then deviations), and the
# backward pass torch's own. What is done in place is done to flat rows: done to a view, it costs copies of the gradient.

EPS = 1e-5


class ModulatedNorm(nn.Module):
    """Layer norm of every row, then scaled and shifted by the whole: that is where time and size enter."""

    def __init__(self, width: int, global_width: int) -> None:
        super().__init__()
        self.film = nn.Linear(global_width, 2 * width)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Return [B, N, D] of rows [B, N, D] and whole [B, Y]."""
        scale, shift = self.film(whole).unsqueeze(1).chunk(2, dim=-1)  # [B, 1, D]
        return torch.addcmul(shift, normalised(rows), 1 + scale)


def normalised(rows: Tensor) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) of every row of [..., D], population variance, eps 1e-5; differentiable once."""
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return functional.layer_norm(rows, rows.shape[-1:], eps=EPS)
    if not (torch.is_grad_enabled() and rows.requires_grad):
        return _statistics(rows)[0]
    out: Tensor = _Normalised.apply(rows)  # type: ignore[no-untyped-call]
    return out


def added(to: Tensor, linear: nn.Linear, rows: Tensor) -> Tensor:
    """Return to + linear(rows), [B, N, D] of [B, N, D] and [B, N, C]."""
    flat: Tensor = linear(rows.flatten(0, 1))  # [B * N, D]
    base = to.flatten(0, 1)
    total = flat.add_(base) if flat.dtype == base.dtype else flat + base
    return total.view(to.shape)


def _statistics(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised rows [..., D], their means and 1 / sqrt(var + eps), [..., 1] each."""
    mean = rows.mean(dim=-1, keepdim=True)
    out = rows - mean
    # The variance is the squared norm of the deviations over D: sqrt(var + eps) without another pass over the rows.
    length = torch.linalg.vector_norm(out, dim=-1, keepdim=True)  # [..., 1]
    scale = length.square_().div_(rows.shape[-1]).add_(EPS).rsqrt_()
    return out.mul_(scale), mean, scale


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        out, mean, scale = _statistics(rows)
        ctx.save_for_backward(rows, mean, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rows, mean, scale = ctx.saved_tensors
        inner = [rows.shape[-1]]
        found = torch.ops.aten.native_layer_norm_backward(
            grad, rows, inner, mean, scale, None, None, [True, False, False]
        )
        back: Tensor = found[0]
        return back


# Attention of nodes to nodes whose scores the pairs scale and shift.
#
#     score_h(i, j) = (q_i . k_j / sqrt(d)) * (1 + scale_h(e_ij)) + shift_h(e_ij)
#
# How this differs from public versions: the pairs steer each head's scores (FiLM: arXiv 1709.07871) and not each channel, so that
# no n x n x width tensor exists. d is the width of a head.

# Below this many nodes torch's softmax on the CPU is not vectorised.
FEW = 16


class PairAttention(nn.Module):
    """Reads for every node from all nodes of its graph; adds what is read to the nodes."""

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
        """Return the nodes with what they read, [B, n, D]."""
        b, n, width = state.nodes.shape
        d = width // self.heads
        # parts: [B, n, 3, H, d]; q, k and v: [B * H, n, d], one batched product for all heads.
        parts = self.inputs(self.node_norm(state.nodes, state.whole)).view(b, n, 3, self.heads, d)
        q, k, v = parts.permute(2, 0, 3, 1, 4).reshape(3, b * self.heads, n, d).unbind()
        scale, shift = self._film(state, layout)  # [B, H, n, n]
        scores = torch.bmm(q, k.transpose(1, 2)).view(b, self.heads, n, n)  # [B, H, n, n]
        scores = torch.addcmul(shift, scores, scale, value=d**-0.5)
        # No node reads from padding; what padding itself reads is finite and read by nobody.
        scores = scores.masked_fill_(~layout.is_node[:, None, None, :], -torch.inf)
        read = weighted(scores.view(b * self.heads, n, n), v).view(b, self.heads, n, d)
        # [B, H, n, d] -> [B, n, H * d], the heads side by side.
        return added(state.nodes, self.output, read.transpose(1, 2).reshape(b, n, width))

    def _film(self, state: GraphState, layout: GraphLayout) -> tuple[Tensor, Tensor]:
        """Return 1 + scale and shift, [B, H, n, n] each."""
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
        # In the layout of the scores: mixed layouts make the operations that follow several times slower.
        scale, shift = (
            film.view(b, n, n, 2, self.heads).permute(3, 0, 4, 1, 2).contiguous().unbind()
        )  # [B, H, n, n]
        return scale, shift


def weighted(scores: Tensor, values: Tensor) -> Tensor:
    """Return softmax(scores) @ values, [R, n, d] of [R, n, m] and [R, m, d]; a row of scores has one above -inf."""
    scores = at_least_float32(scores)
    if scores.shape[-1] >= FEW or scores.device.type != "cpu":
        return torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    # A softmax whose division comes after the product: the maximum is taken off first, so that nothing overflows.
    weights = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp_()
    total = weights.sum(dim=-1, keepdim=True)  # [R, n, 1]
    return torch.bmm(weights.to(values.dtype), values) / total.to(values.dtype)


class GraphLayer(nn.Module):
    """Attention, pair update, and update of the whole, each added to what came in."""

    def __init__(
        self, width: int, pair_width: int, global_width: int, heads: int, expansion: int
    ) -> None:
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
        nodes = self.node_forward(self.attention(state, layout), state.whole)
        pairs = self.pair_forward(
            self.pair_update(state.pairs, nodes, state.whole, layout), state.whole
        )
        means = [_mean(layout.node_share, nodes), _mean(layout.pair_share, pairs)]  # [B, D], [B, E]
        return GraphState(
            nodes, pairs, state.whole + self.whole_forward(torch.cat([*means, state.whole], dim=-1))
        )


class PairUpdate(nn.Module):
    """Tell every pair of its two nodes, in no order: the product of their projections, (b + u_i) * (b + u_j)."""

    def __init__(self, width: int, pair_width: int, global_width: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.input = nn.Linear(width, pair_width)
        self.output = nn.Linear(pair_width, pair_width)

    def forward(self, pairs: Tensor, nodes: Tensor, whole: Tensor, layout: GraphLayout) -> Tensor:
        """Return the pairs with what they read, [B, M, E]."""
        projected = self.input(self.norm(nodes, whole))  # [B, n, E]
        first, second = (projected.index_select(1, end) for end in layout.ends)  # [B, M, E]
        return added(pairs, self.output, first * second)


class FeedForward(nn.Module):
    """A norm and two linear maps with a ReLU between them, on every row by itself, added to the row."""

    def __init__(self, width: int, global_width: int, expansion: int) -> None:
        super().__init__()
        self.norm = ModulatedNorm(width, global_width)
        self.input = nn.Linear(width, width * expansion)
        self.output = nn.Linear(width * expansion, width)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Return [B, N, D] of rows [B, N, D]."""
        flat = self.input(self.norm(rows, whole).flatten(0, 1)).relu_()  # [B * N, C]
        return added(rows, self.output, flat.view(*rows.shape[:2], flat.shape[-1]))


def _mean(share: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted mean [B, D] of rows [B, N, D]."""
    return torch.bmm(share.to(rows.dtype), rows).squeeze(1)  # [B, 1, N] @ [B, N, D] -> [B, D]
