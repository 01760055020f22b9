"""A graph as the entries that are drawn once each: n atoms, n charges, and the n (n - 1) / 2 pairs of nodes.

How this differs from public versions: bonds are kept, drawn, scored and computed with as one entry per pair of nodes, in place
of a symmetric matrix: no bond is drawn or counted twice, and the network's edges take half the room. M is the number of pairs
in this file's order: (0, 1), (0, 2), ..., (0, n - 1), (1, 2), ..., (n - 2, n - 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.components import Components
from grpo_pipeline.tasks.molecules.graphs import MoleculeGraphs, node_mask


@dataclass(frozen=True)
class GraphPrompts:
    """Prompts of the graphs to be drawn: size and conditions; P rows.

    Attributes:
        sizes: int64 [P], number of nodes of the graph that is wanted, 1..nodes.
        conditions: [P, F], numbers that the network is told beside the size, such as a target; F may be 0.
        nodes: n, the width to which every graph is padded; one number, so that micro-batches fit together again.
    """

    sizes: Tensor
    conditions: Tensor
    nodes: int

    def __post_init__(self) -> None:
        if self.sizes.dtype != torch.int64 or self.sizes.ndim != 1:
            raise ValueError(f"sizes must be int64 [P], got {self.sizes.dtype} {list(self.sizes.shape)}; give one per graph")
        if self.conditions.ndim != 2 or len(self.conditions) != len(self.sizes):
            rows = len(self.sizes)
            raise ValueError(f"conditions must have shape [{rows}, F], got {list(self.conditions.shape)}; F is 0 without any")

    def repeated(self, times: int) -> "GraphPrompts":
        """Return every row ``times`` times, the same rows adjacent: row n = p * times + g."""
        return GraphPrompts(self.sizes.repeat_interleave(times), self.conditions.repeat_interleave(times, dim=0), self.nodes)

    def to(self, device: torch.device | str) -> "GraphPrompts":
        """Return the same prompts on another device."""
        return GraphPrompts(self.sizes.to(device), self.conditions.to(device), self.nodes)

    @property
    def masks(self) -> Components[Tensor]:
        """Which entries belong to the graph, bool: atoms [P, n], charges [P, n], bonds [P, M]."""
        nodes = node_mask(self.sizes, self.nodes)
        first, second = pair_index(self.nodes, self.sizes.device)
        return Components(nodes, nodes, nodes[:, first] & nodes[:, second])


def make_prompts(sizes: Tensor, nodes: int, conditions: Tensor | None = None) -> GraphPrompts:
    """Return prompts for graphs of these sizes, without conditions where there are none.

    Raises:
        ValueError: if a size is not between 1 and ``nodes``.
    """
    if bool(((sizes < 1) | (sizes > nodes)).any()):
        low, high = int(sizes.min()), int(sizes.max())
        raise ValueError(f"sizes must be between 1 and {nodes}, got {low} to {high}; change nodes or the sizes")
    empty = torch.zeros(len(sizes), 0, device=sizes.device)
    return GraphPrompts(sizes, empty if conditions is None else conditions, nodes)


def pair_index(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the two nodes of every pair, int64 [2, M], the first below the second."""
    return torch.triu_indices(nodes, nodes, 1, device=device)


def pair_lookup(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return where the pair (i, j) stands among the pairs, int64 [n, n], symmetric; M on the diagonal."""
    first, second = pair_index(nodes, device)
    numbers = torch.arange(len(first), device=device)
    lookup = torch.full((nodes, nodes), len(first), dtype=torch.int64, device=device)
    lookup[first, second] = numbers
    lookup[second, first] = numbers
    return lookup


def entries_of(graphs: MoleculeGraphs) -> Components[Tensor]:
    """Return the classes of all entries, int64: atoms [B, n], charges [B, n], bonds [B, M]."""
    first, second = pair_index(graphs.atoms.shape[1], graphs.atoms.device)
    return Components(graphs.atoms, graphs.charges, graphs.bonds[:, first, second])


def graphs_of(entries: Components[Tensor], sizes: Tensor) -> MoleculeGraphs:
    """Return the graphs that these entries (any integer type) describe; the inverse of ``entries_of``.

    Raises:
        ValueError: if an entry outside a graph is not 0.
    """
    atoms, charges, bonds = (part.long() for part in entries)
    return MoleculeGraphs(atoms, charges, dense_pairs(bonds, atoms.shape[1]), sizes)


def prompts_of(graphs: MoleculeGraphs, conditions: Tensor | None = None) -> GraphPrompts:
    """Return the prompts that these graphs would be answers to."""
    return make_prompts(graphs.sizes, graphs.atoms.shape[1], conditions)


def dense_pairs(pairs: Tensor, nodes: int) -> Tensor:
    """Return [B, n, n, ...] of pairs [B, M, ...]: symmetric, 0 on the diagonal."""
    loop = pairs.new_zeros(len(pairs), 1, *pairs.shape[2:])
    dense = torch.cat([pairs, loop], dim=1).index_select(1, pair_lookup(nodes, pairs.device).flatten())
    return dense.view(len(pairs), nodes, nodes, *pairs.shape[2:])


def entry_logprobs(log_probs: Components[Tensor], entries: Components[Tensor], masks: Components[Tensor]) -> Components[Tensor]:
    """Return the log-probability of every entry's class, [B, N] each, exactly 0 for padding.

    Args:
        log_probs: [B, N, K] each.
        entries: integers [B, N] each.
        masks: bool [B, N] each.
    """

    def pick(scores: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        return scores.gather(-1, classes.long().unsqueeze(-1)).squeeze(-1).masked_fill(~mask, 0.0)

    return log_probs.each(pick, entries, masks)
