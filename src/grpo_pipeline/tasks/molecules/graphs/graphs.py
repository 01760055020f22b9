"""Hold molecules as tensors, in the form that data, model, rewards and metrics share.

Axes: B graphs, n nodes (those of the largest graph; smaller graphs are padded with 0). A class is an index into the caller's
vocabulary of elements, formal charges or bonds (class 0 of the bonds is "none").
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

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
        sizes: int64 [B], number of nodes, 1..n; all nodes and pairs behind it hold 0.

    Raises:
        ValueError: if shapes, dtypes, symmetry or padding are wrong (names the graph).
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
        """Mark the nodes of the graph, bool [B, n]."""
        return node_mask(self.sizes, self.atoms.shape[1])

    @property
    def pair_mask(self) -> Tensor:
        """Mark the pairs of two different nodes of the graph, bool [B, n, n]."""
        nodes = self.node_mask
        loops = torch.eye(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        # [B, n, 1] & [B, 1, n] & [n, n] -> [B, n, n].
        return nodes[:, :, None] & nodes[:, None, :] & ~loops

    def to(self, device: torch.device | str) -> "MoleculeGraphs":
        """Move the graphs to another device."""
        return MoleculeGraphs(*(getattr(self, field.name).to(device) for field in fields(self)))

    def select(self, rows: Tensor | Sequence[int]) -> "MoleculeGraphs":
        """Select the graphs of these rows: int64 [R], in this order, or bool [B]; the padding stays."""
        index = torch.as_tensor(rows, device=self.sizes.device)
        index = index if index.dtype == torch.bool else index.long()
        return MoleculeGraphs(
            self.atoms[index], self.charges[index], self.bonds[index], self.sizes[index]
        )

    def padded_to(self, nodes: int) -> "MoleculeGraphs":
        """Pad, or cut, the graphs to ``nodes`` nodes.

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
    """Join all graphs of the parts in their order, padded to the widest part.

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
    """Mark the nodes that belong to graphs of these sizes, int64 [B] -> bool [B, n]."""
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
            # An aromatic bond is a class of its own: an integer tensor would cut 1.5 to 1.
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
    """Raise if any graph is wrong, is_wrong bool [B]; the sentence names the first such graph."""
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(f"{rule}, got otherwise in graph {row}; correct what made it")
