"""Molecules as tensors, in the form that data, model, rewards and metrics share.

Axes: B graphs, n nodes (the largest graph's, smaller ones are padded with 0). A class is an index into a vocabulary that the
caller keeps: of elements, of formal charges, of bonds (class 0 of the bonds is "none").
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class MoleculeGraphs:
    """B graphs of up to n nodes.

    Attributes:
        atoms: int64 [B, n], class of the element.
        charges: int64 [B, n], class of the formal charge.
        bonds: int64 [B, n, n], class of the bond, 0 = none; symmetric, 0 on the diagonal.
        sizes: int64 [B], number of nodes, 1..n; nodes and pairs behind it hold 0 everywhere.

    Raises:
        ValueError: if shapes, dtypes, symmetry or padding are otherwise (names the graph).
    """

    atoms: Tensor
    charges: Tensor
    bonds: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_values(self)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def node_mask(self) -> Tensor:
        """Bool [B, n], True for nodes of the graph."""
        return node_mask(self.sizes, self.atoms.shape[1])

    @property
    def pair_mask(self) -> Tensor:
        """Bool [B, n, n], True for pairs of two different nodes of the graph."""
        nodes = self.node_mask
        loops = torch.eye(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        # [B, n, 1] & [B, 1, n] & [n, n] -> [B, n, n].
        return nodes[:, :, None] & nodes[:, None, :] & ~loops

    def to(self, device: torch.device | str) -> "MoleculeGraphs":
        """Return the same graphs on another device."""
        return MoleculeGraphs(*(getattr(self, field.name).to(device) for field in fields(self)))

    def select(self, rows: Tensor | Sequence[int]) -> "MoleculeGraphs":
        """Return the graphs of these rows: int64 [R], in this order, or bool [B]; the padding stays as it is."""
        index = torch.as_tensor(rows, device=self.sizes.device)
        index = index if index.dtype == torch.bool else index.long()
        return MoleculeGraphs(
            self.atoms[index], self.charges[index], self.bonds[index], self.sizes[index]
        )

    def padded_to(self, nodes: int) -> "MoleculeGraphs":
        """Return the same graphs padded, or cut, to ``nodes`` nodes.

        Raises:
            ValueError: if a graph is larger than that.
        """
        largest = int(self.sizes.max()) if len(self) else 1
        if nodes < largest:
            raise ValueError(
                f"nodes must be at least the size of the largest graph, got {nodes} for one of {largest}; pad to more"
            )
        more = nodes - self.atoms.shape[1]
        return MoleculeGraphs(
            functional.pad(self.atoms, (0, more)),
            functional.pad(self.charges, (0, more)),
            functional.pad(self.bonds, (0, more, 0, more)),
            self.sizes,
        )


def concatenate(parts: Sequence[MoleculeGraphs]) -> MoleculeGraphs:
    """Return all graphs of the parts in their order, padded to the widest part.

    Raises:
        ValueError: if there is no part.
    """
    if not parts:
        raise ValueError(
            "parts must hold at least one batch of graphs, got none; give those that are to be put together"
        )
    nodes = max(part.atoms.shape[1] for part in parts)
    padded = [part.padded_to(nodes) for part in parts]
    return MoleculeGraphs(
        *(
            torch.cat([getattr(part, field.name) for part in padded])
            for field in fields(MoleculeGraphs)
        )
    )


def node_mask(sizes: Tensor, nodes: int) -> Tensor:
    """Return which of ``nodes`` nodes belong to graphs of these sizes, int64 [B] -> bool [B, n]."""
    return torch.arange(nodes, device=sizes.device) < sizes[:, None]


def _check_shapes(graphs: MoleculeGraphs) -> None:
    shapes = {field.name: tuple(getattr(graphs, field.name).shape) for field in fields(graphs)}
    if graphs.atoms.ndim != 2 or graphs.atoms.shape[1] < 1:
        raise ValueError(
            f"atoms must have shape [B, n] with n >= 1, got {shapes['atoms']}; give one row of classes per graph"
        )
    count, nodes = graphs.atoms.shape
    wanted = {
        "atoms": (count, nodes),
        "charges": (count, nodes),
        "bonds": (count, nodes, nodes),
        "sizes": (count,),
    }
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise ValueError(
                f"{name} must have shape {shape} beside atoms of {shapes['atoms']}, got {shapes[name]}; pad alike"
            )
        if (dtype := getattr(graphs, name).dtype) != torch.int64:
            # An aromatic bond is a class of its own: 1.5 would be cut to 1 by an integer tensor.
            raise ValueError(
                f"{name} must be int64 classes, got {dtype}; look the values up in the vocabulary"
            )


def _check_values(graphs: MoleculeGraphs) -> None:
    nodes = graphs.atoms.shape[1]
    is_node, is_pair = graphs.node_mask, graphs.pair_mask
    _refuse(
        (graphs.sizes < 1) | (graphs.sizes > nodes),
        f"sizes must be between 1 and {nodes}, the nodes that there is room for",
    )
    # Flags of each graph, [B], from entries [B, n] or [B, n, n].
    for name, is_inside in (("atoms", is_node), ("charges", is_node), ("bonds", is_pair)):
        classes = getattr(graphs, name)
        _refuse((classes < 0).flatten(1).any(1), f"{name} must be classes from 0 on, none negative")
        where = (
            "outside pairs of two different nodes" if name == "bonds" else "behind the last node"
        )
        _refuse((classes.ne(0) & ~is_inside).flatten(1).any(1), f"{name} must be 0 {where}")
    _refuse(
        (graphs.bonds != graphs.bonds.transpose(1, 2)).flatten(1).any(1), "bonds must be symmetric"
    )


def _refuse(is_wrong: Tensor, rule: str) -> None:
    """Raise if any graph is wrong, is_wrong bool [B]; the first one is named."""
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(f"{rule}, got otherwise in graph {row}; correct what made it")


# One value for each of the three components of a molecule: atoms, charges, bonds.

T = TypeVar("T")
R = TypeVar("R")

NAMES = ("atoms", "charges", "bonds")


@dataclass(frozen=True)
class Components(Generic[T]):
    """A value for the atoms, one for the charges, one for the bonds, in this order: classes, distributions, weights, names."""

    atoms: T
    charges: T
    bonds: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.atoms, self.charges, self.bonds))

    def each(self, function: Callable[..., R], *others: "Components[Any]") -> "Components[R]":
        """Return function(value, value of each other) for every component."""
        return Components(*(function(*values) for values in zip(self, *others, strict=True)))


# A graph as the entries that are drawn once each: n atoms, n charges, and the n (n - 1) / 2 pairs of nodes.
#
# How this differs from public versions: bonds are kept, drawn, scored and computed with as one entry per pair of nodes, in place
# of a symmetric matrix: no bond is drawn or counted twice, and the network's edges take half the room. M is the number of pairs
# in this file's order: (0, 1), (0, 2), ..., (0, n - 1), (1, 2), ..., (n - 2, n - 1).


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
            raise ValueError(
                f"sizes must be int64 [P], got {self.sizes.dtype} {list(self.sizes.shape)}; give one per graph"
            )
        if self.conditions.ndim != 2 or len(self.conditions) != len(self.sizes):
            rows = len(self.sizes)
            raise ValueError(
                f"conditions must have shape [{rows}, F], got {list(self.conditions.shape)}; F is 0 without any"
            )

    def repeated(self, times: int) -> "GraphPrompts":
        """Return every row ``times`` times, the same rows adjacent: row n = p * times + g."""
        return GraphPrompts(
            self.sizes.repeat_interleave(times),
            self.conditions.repeat_interleave(times, dim=0),
            self.nodes,
        )

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
        raise ValueError(
            f"sizes must be between 1 and {nodes}, got {low} to {high}; change nodes or the sizes"
        )
    empty = torch.zeros(len(sizes), 0, device=sizes.device)
    return GraphPrompts(sizes, empty if conditions is None else conditions, nodes)


def pair_index(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the two nodes of every pair, int64 [2, M], the first below the second."""
    return torch.triu_indices(nodes, nodes, 1, device=device)


def pair_lookup(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return where the pair (i, j) stands among the pairs, int64 [n, n], symmetric; M on the diagonal."""
    first, second = pair_index(nodes, device)
    numbers = torch.arange(len(first), device=device)
    lookup = torch.full((nodes, nodes), len(first), dtype=torch.int64, device=device)  # [n, n]
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


def dense_pairs(pairs: Tensor, nodes: int) -> Tensor:
    """Return [B, n, n, ...] of pairs [B, M, ...]: symmetric, 0 on the diagonal."""
    loop = pairs.new_zeros(len(pairs), 1, *pairs.shape[2:])  # [B, 1, ...]
    # Entry M, a row of zeros, is where the lookup sends the diagonal: [B, M + 1, ...] -> [B, n * n, ...].
    dense = torch.cat([pairs, loop], dim=1).index_select(
        1, pair_lookup(nodes, pairs.device).flatten()
    )
    return dense.view(len(pairs), nodes, nodes, *pairs.shape[2:])


def entry_logprobs(
    log_probs: Components[Tensor], entries: Components[Tensor], masks: Components[Tensor]
) -> Components[Tensor]:
    """Return the log-probability of every entry's class, [B, N] each, exactly 0 for padding.

    Args:
        log_probs: [B, N, K] each.
        entries: integers [B, N] each.
        masks: bool [B, N] each.
    """

    def pick(scores: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        # [B, N, K] -> [B, N].
        return scores.gather(-1, classes.long().unsqueeze(-1)).squeeze(-1).masked_fill(~mask, 0.0)

    return log_probs.each(pick, entries, masks)
