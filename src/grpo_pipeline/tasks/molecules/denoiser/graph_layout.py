"""Lay out graphs in a batch: inputs and outputs of a layer, and the rows that belong together.

Axes: B graphs, n nodes, M pairs; D, E, Y the widths of a node, a pair, the whole.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.graph_entries import pair_index, pair_lookup
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts


@dataclass(frozen=True)
class GraphState:
    """Input and output of a layer: nodes [B, n, D], pairs [B, M, E], whole [B, Y]; padding holds anything finite."""

    nodes: Tensor
    pairs: Tensor
    whole: Tensor


@dataclass(frozen=True)
class GraphLayout:
    """Index of the rows that belong together.

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
    """Build the layout of graphs of these sizes; weights of means have the dtype of the network."""
    masks, device = prompts.masks, prompts.sizes.device
    node_share, pair_share = (_share(mask).to(dtype) for mask in (masks.atoms, masks.bonds))
    lookup = pair_lookup(prompts.nodes, device).flatten()
    return GraphLayout(
        masks.atoms, node_share, pair_share, pair_index(prompts.nodes, device), lookup
    )


def _share(is_counted: Tensor) -> Tensor:
    return (is_counted / is_counted.sum(dim=1, keepdim=True).clamp(min=1)).unsqueeze(1)
