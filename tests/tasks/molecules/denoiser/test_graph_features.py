from itertools import permutations

import pytest
import torch
from tiny_graphs import CLASSES, prompts, random_entries

from grpo_pipeline.tasks.molecules.denoiser.denoiser import bond_counts, cycle_counts, structure_features
from grpo_pipeline.tasks.molecules.graphs.graphs import dense_pairs


def naive_cycles(bonded: torch.Tensor, length: int) -> list[int]:
    """Count the cycles of ``length`` different nodes through each node, walking all ordered choices of nodes."""
    n = len(bonded)
    counts = [0] * n
    for path in permutations(range(n), length):
        if all(bool(bonded[a, b]) for a, b in zip(path, path[1:] + path[:1], strict=True)):
            counts[path[0]] += 1
    return [count // 2 for count in counts]  # each cycle is walked in both directions


@pytest.mark.parametrize("seed", range(4))
def test_cycles_are_those_of_brute_force(seed: int) -> None:
    wanted = prompts([6, 5, 3], 6)
    bonds = random_entries(wanted, seed=seed).bonds
    bonds[0] *= torch.arange(15) % 2  # a sparse graph beside dense ones
    counts = cycle_counts(bonds, 6, torch.float64)
    for row in range(3):
        bonded = dense_pairs(bonds, 6)[row] > 0
        for column, length in enumerate((3, 4, 5)):
            assert counts[row, :, column].tolist() == naive_cycles(bonded, length)


def test_bonds_are_counted_at_both_ends() -> None:
    wanted = prompts([4, 2], 4)
    bonds = random_entries(wanted).bonds
    dense = dense_pairs(bonds, 4)
    for k in range(1, CLASSES.bonds):
        assert torch.equal(bond_counts(bonds, 4, CLASSES.bonds, torch.float64)[..., k - 1], (dense == k).sum(-1).double())


def test_features_are_logarithms_of_counts() -> None:
    square = torch.tensor([[1, 0, 2, 1, 0, 1]])  # (0, 1), (0, 3), (1, 2), (2, 3)
    nodes, whole = (part.expm1() for part in structure_features(square, 4, CLASSES.bonds, torch.float64))
    assert torch.allclose(nodes[0, 0], torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    assert torch.allclose(whole, torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64))


def test_counts_are_exact_where_the_network_is_not() -> None:
    """In bfloat16 counts above 256 would be rounded."""
    bonds = torch.ones(1, 28, dtype=torch.int64)  # 8 nodes, all bonded
    with torch.autocast("cpu", dtype=torch.bfloat16):
        counts = cycle_counts(bonds, 8, torch.float32)
    # through each of 8 nodes: (7 * 6) / 2, (7 * 6 * 5) / 2, (7 * 6 * 5 * 4) / 2
    assert counts[0, 0].tolist() == [21.0, 105.0, 420.0]
