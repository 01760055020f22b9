"""List the entries of a graph, each of which is drawn once: n atoms, n charges, and n (n - 1) / 2 pairs of nodes.

How this differs from public versions: bonds are one entry per pair of nodes everywhere, in place of a symmetric matrix. No bond
is drawn or counted twice, and the network's edges take half the memory. M is the number of pairs in this file's order: (0, 1),
(0, 2), ..., (0, n - 1), (1, 2), ..., (n - 2, n - 1).
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs


def pair_index(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the two nodes of every pair, int64 [2, M], the first below the second."""
    return torch.triu_indices(nodes, nodes, 1, device=device)


def pair_lookup(nodes: int, device: torch.device | str = "cpu") -> Tensor:
    """Find the number of the pair (i, j), int64 [n, n], symmetric; M on the diagonal."""
    first, second = pair_index(nodes, device)
    numbers = torch.arange(len(first), device=device)
    lookup = torch.full((nodes, nodes), len(first), dtype=torch.int64, device=device)  # [n, n]
    lookup[first, second] = numbers
    lookup[second, first] = numbers
    return lookup


def entries_of(graphs: MoleculeGraphs) -> Components[Tensor]:
    """List the classes of all entries, int64: atoms [B, n], charges [B, n], bonds [B, M]."""
    first, second = pair_index(graphs.atoms.shape[1], graphs.atoms.device)
    return Components(graphs.atoms, graphs.charges, graphs.bonds[:, first, second])


def graphs_of(entries: Components[Tensor], sizes: Tensor) -> MoleculeGraphs:
    """Build the graphs of these entries (any integer type); the inverse of ``entries_of``.

    Raises:
        ValueError: if an entry outside a graph is not 0.
    """
    atoms, charges, bonds = (part.long() for part in entries)
    return MoleculeGraphs(atoms, charges, dense_pairs(bonds, atoms.shape[1]), sizes)


def dense_pairs(pairs: Tensor, nodes: int) -> Tensor:
    """Expand pairs [B, M, ...] to [B, n, n, ...]: symmetric, 0 on the diagonal."""
    loop = pairs.new_zeros(len(pairs), 1, *pairs.shape[2:])  # [B, 1, ...]
    # Entry M, a row of zeros, is where the lookup sends the diagonal: [B, M + 1, ...] -> [B, n * n, ...].
    dense = torch.cat([pairs, loop], dim=1).index_select(
        1, pair_lookup(nodes, pairs.device).flatten()
    )
    return dense.view(len(pairs), nodes, nodes, *pairs.shape[2:])


def entry_logprobs(
    log_probs: Components[Tensor], entries: Components[Tensor], masks: Components[Tensor]
) -> Components[Tensor]:
    """Select the log-probability of every entry's class, [B, N] each, exactly 0 for padding.

    Args:
        log_probs: [B, N, K] each.
        entries: integers [B, N] each.
        masks: bool [B, N] each.
    """

    def pick(scores: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        # [B, N, K] -> [B, N].
        return scores.gather(-1, classes.long().unsqueeze(-1)).squeeze(-1).masked_fill(~mask, 0.0)

    return log_probs.each(pick, entries, masks)
