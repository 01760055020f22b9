"""Count the bonds of each class at a node and the short cycles through it, which attention over nodes cannot count.

Source: the structural features of DiGress, arXiv 2209.14734. How this differs: counts enter as log(1 + count), not as a tenth cut
off at 1. That stays moderate for the dense graphs of the first denoising steps.
"""

import torch
from torch import Tensor
from torch.nn import functional

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.molecules.graphs.graph_entries import dense_pairs, pair_index

CYCLES = (3, 4, 5)


def structure_features(
    bonds: Tensor, nodes: int, classes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the features of every node and every graph from the bonds, as log(1 + count).

    Args:
        bonds: classes of the pairs, integers [B, M], 0 = none and for padding.
        nodes: n.
        classes: K, the number of bond classes, "none" among them.
        dtype: floating type of the result.

    Returns:
        Bonds of each class at every node, and cycles of 3, 4 and 5 nodes through it: [B, n, K - 1 + 3], 0 for padding. Cycles of
        3, 4 and 5 nodes in each graph: [B, 3].
    """
    cycles = cycle_counts(bonds, nodes, dtype)
    at_nodes = torch.cat([bond_counts(bonds, nodes, classes, dtype), cycles], dim=-1)
    length = torch.tensor(CYCLES, dtype=dtype, device=bonds.device)
    # A cycle of k nodes is counted at each of them, so that the sum over nodes is divided by k; [B, 3].
    return at_nodes.log1p_(), (cycles.sum(dim=1) / length).log1p_()


def bond_counts(bonds: Tensor, nodes: int, classes: int, dtype: torch.dtype) -> Tensor:
    """Count the bonds of each class but "none" at every node, [B, n, K - 1]."""
    known = torch.arange(1, classes, dtype=bonds.dtype, device=bonds.device)
    each = (bonds.unsqueeze(1) == known.unsqueeze(-1)).to(dtype)  # [B, K - 1, M]
    # ends: [M, n], 1 at both nodes of a pair.
    ends = functional.one_hot(pair_index(nodes, bonds.device), nodes).sum(dim=0).to(dtype)
    with exact_region(bonds):
        return (each @ ends).transpose(1, 2)  # [B, n, K - 1]


def cycle_counts(bonds: Tensor, nodes: int, dtype: torch.dtype) -> Tensor:
    """Count the cycles of 3, 4 and 5 different nodes through every node, for bonds of any class; [B, n, 3].

    The number of closed walks of k steps is w_k = diag(A^k), with the adjacency A. Walks that visit a node twice are subtracted.
    The two directions of a cycle count once. With the degree d:

        c3 = w3 / 2
        c4 = (w4 - d (d - 1) - A d) / 2
        c5 = (w5 - 2 d w3 - 2 (A o A^2) d - A w3 + 5 w3) / 2
    """
    with exact_region(bonds):
        a = dense_pairs((bonds > 0).to(dtype), nodes)  # A: [B, n, n]
        a2 = a @ a
        a3 = a2 @ a
        degree, w3 = a.sum(dim=-1), a3.diagonal(dim1=1, dim2=2)  # [B, n]
        w4, w5 = (
            (a2 * a2).sum(dim=-1),
            (a2 * a3).sum(dim=-1),
        )  # diagonals of products of symmetric matrices
        c4 = w4 - degree * (degree - 1) - _times(a, degree)
        c5 = w5 - 2 * degree * w3 - 2 * _times(a * a2, degree) - _times(a, w3) + 5 * w3
        return torch.stack([w3, c4, c5], dim=-1) / 2  # [B, n, 3]


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
