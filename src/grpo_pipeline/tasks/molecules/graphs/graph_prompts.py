"""Hold the prompts of graphs: their sizes and conditions, and which entries belong to each graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import pair_index
from grpo_pipeline.tasks.molecules.graphs.graphs import node_mask


@dataclass(frozen=True)
class GraphPrompts:
    """Prompts of the graphs to be drawn: size and conditions; P rows.

    Attributes:
        sizes: int64 [P], number of nodes of the wanted graph, 1..nodes.
        conditions: [P, F], inputs of the network beside the size, such as a target; F may be 0.
        nodes: n, the width to which every graph is padded; the same for all, so that micro-batches can be joined again.
    """

    sizes: Tensor
    conditions: Tensor
    nodes: int

    def __post_init__(self) -> None:
        if self.sizes.dtype != torch.int64 or self.sizes.ndim != 1:
            raise ValueError(
                f"sizes must be int64 [P], got {self.sizes.dtype} {list(self.sizes.shape)}; give one per graph"
            )
        if self.conditions.ndim != 2 or len(self.conditions) != len(self.sizes):
            rows = len(self.sizes)
            raise ValueError(
                f"conditions must have shape [{rows}, F], got {list(self.conditions.shape)}; F is 0 without any"
            )

    def repeated(self, times: int) -> "GraphPrompts":
        """Repeat every row ``times`` times, the same rows adjacent: row n = p * times + g."""
        return GraphPrompts(
            self.sizes.repeat_interleave(times),
            self.conditions.repeat_interleave(times, dim=0),
            self.nodes,
        )

    def to(self, device: torch.device | str) -> "GraphPrompts":
        """Move the prompts to another device."""
        return GraphPrompts(self.sizes.to(device), self.conditions.to(device), self.nodes)

    @property
    def masks(self) -> Components[Tensor]:
        """Mark the entries that belong to the graph, bool: atoms [P, n], charges [P, n], bonds [P, M]."""
        nodes = node_mask(self.sizes, self.nodes)
        first, second = pair_index(self.nodes, self.sizes.device)
        return Components(nodes, nodes, nodes[:, first] & nodes[:, second])


def make_prompts(sizes: Tensor, nodes: int, conditions: Tensor | None = None) -> GraphPrompts:
    """Build prompts for graphs of these sizes, with or without conditions.

    Raises:
        ValueError: if a size is not between 1 and ``nodes``.
    """
    if bool(((sizes < 1) | (sizes > nodes)).any()):
        low, high = int(sizes.min()), int(sizes.max())
        raise ValueError(
            f"sizes must be between 1 and {nodes}, got {low} to {high}; change nodes or the sizes"
        )
    empty = torch.zeros(len(sizes), 0, device=sizes.device)
    return GraphPrompts(sizes, empty if conditions is None else conditions, nodes)
