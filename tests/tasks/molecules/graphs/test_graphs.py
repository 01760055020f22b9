import re

import pytest
import torch
from tiny_graphs import prompts, random_graphs

from grpo_pipeline.tasks.molecules.graphs.graph_entries import dense_pairs, entries_of, graphs_of, pair_index, pair_lookup
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs, concatenate


def two_graphs(**entries: tuple[tuple[int, ...], int]) -> dict[str, torch.Tensor]:
    """Three nodes in a row with a double bond at the end, and a pair, padded to three nodes; with single entries changed."""
    parts = {
        "atoms": torch.tensor([[0, 1, 2], [2, 1, 0]]),
        "charges": torch.tensor([[1, 0, 1], [1, 1, 0]]),
        "bonds": torch.tensor([[[0, 1, 0], [1, 0, 2], [0, 2, 0]], [[0, 3, 0], [3, 0, 0], [0, 0, 0]]]),
        "sizes": torch.tensor([3, 2]),
    }
    for name, (index, value) in entries.items():
        parts[name][index] = value
    return parts


def test_selected_graphs_keep_their_order_and_are_padded_to_the_widest() -> None:
    graphs = MoleculeGraphs(**two_graphs())
    assert graphs.select([1, 0, 1]).sizes.tolist() == [2, 3, 2]
    assert graphs.select(torch.tensor([False, True])).atoms.tolist() == [[2, 1, 0]]
    assert len(graphs.select([])) == 0
    small = graphs.select([1]).padded_to(2)
    assert small.bonds.shape == (1, 2, 2)
    together = concatenate([small, graphs, small.padded_to(5)])
    assert together.atoms.shape == (4, 5)
    assert together.sizes.tolist() == [2, 3, 2, 2]
    again, rows = together.padded_to(5), [1, 0, 1, 1]
    for name in ("atoms", "charges", "bonds"):
        assert torch.equal(getattr(again, name), getattr(graphs.padded_to(5), name)[rows])


REFUSED = [
    (two_graphs(bonds=((0, 0, 2), 1)), "bonds must be symmetric, got otherwise in graph 0"),
    (two_graphs(bonds=((1, 1, 1), 1)), "bonds must be 0 outside pairs of two different nodes, got otherwise in graph 1"),
    (two_graphs(bonds=((1, 0, 2), 1)), "bonds must be 0 outside pairs of two different nodes, got otherwise in graph 1"),
    (two_graphs(atoms=((1, 2), 1)), "atoms must be 0 behind the last node, got otherwise in graph 1"),
    (two_graphs(charges=((1, 2), 1)), "charges must be 0 behind the last node, got otherwise in graph 1"),
    (two_graphs(atoms=((0, 0), -1)), "atoms must be classes from 0 on"),
    (two_graphs(sizes=((0,), 4)), "sizes must be between 1 and 3"),
    (two_graphs(sizes=((1,), 0)), "sizes must be between 1 and 3"),
    (two_graphs() | {"bonds": torch.zeros(2, 3, 3)}, "bonds must be int64 classes, got torch.float32"),
    (two_graphs() | {"bonds": torch.zeros(2, 3, 2, dtype=torch.int64)}, "bonds must have shape (2, 3, 3)"),
    (two_graphs() | {"charges": torch.zeros(2, 2, dtype=torch.int64)}, "charges must have shape (2, 3)"),
    (two_graphs() | {"atoms": torch.zeros(2, dtype=torch.int64)}, "atoms must have shape [B, n]"),
    (lambda: MoleculeGraphs(**two_graphs()).padded_to(2), "nodes must be at least the size of the largest graph, got 2"),
    (lambda: concatenate([]), "parts must hold at least one"),
    (lambda: make_prompts(torch.tensor([2, 5]), 4), "sizes must be between 1 and 4, got 2 to 5"),
    (lambda: make_prompts(torch.tensor([0, 2]), 4), "sizes must be between 1 and 4, got 0 to 2"),
    (lambda: GraphPrompts(torch.tensor([2.0]), torch.zeros(1, 0), 3), "sizes must be int64 [P], got torch.float32"),
    (lambda: make_prompts(torch.tensor([2]), 3, torch.zeros(2, 1)), "conditions must have shape [1, F], got [2, 1]"),
]


def test_what_is_no_graph_or_does_not_fit_is_refused() -> None:
    for parts, message in REFUSED:
        with pytest.raises(ValueError, match=re.escape(message)):
            MoleculeGraphs(**parts) if isinstance(parts, dict) else parts()


def test_every_pair_has_one_entry_and_stands_at_both_places() -> None:
    first, second = pair_index(4)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    lookup, pairs = pair_lookup(4), torch.randn(2, 6, 5)
    assert torch.equal(lookup, lookup.T)
    assert lookup.diagonal().tolist() == [6] * 4
    assert lookup[first, second].tolist() == list(range(6))
    dense = dense_pairs(pairs, 4)
    assert torch.equal(dense[:, first, second], pairs)
    assert torch.equal(dense, dense.transpose(1, 2))
    assert not dense.diagonal(dim1=1, dim2=2).any()


def test_masks_count_each_entry_once_and_leave_out_padding_and_loops() -> None:
    masks, graphs = prompts([3, 1, 4], 4).masks, random_graphs([3, 1, 4], 4)
    inside = torch.arange(4) < torch.tensor([[3], [1], [4]])
    for mask in (masks.atoms, masks.charges, graphs.node_mask):
        assert torch.equal(mask, inside)
    for mask in (dense_pairs(masks.bonds, 4), graphs.pair_mask):
        assert torch.equal(mask, inside[:, :, None] & inside[:, None] & ~torch.eye(4, dtype=torch.bool))
    back = graphs_of(entries_of(graphs).each(lambda part: part.to(torch.uint8)), graphs.sizes)
    for name in ("atoms", "charges", "bonds", "sizes"):
        assert torch.equal(getattr(back, name), getattr(graphs, name))
    # Repeated prompts keep the rows of a group adjacent.
    many = make_prompts(torch.tensor([2, 3]), 4, torch.tensor([[0.5], [1.5]])).repeated(3)
    assert many.sizes.tolist() == [2, 2, 2, 3, 3, 3]
    assert many.conditions[:, 0].tolist() == [0.5] * 3 + [1.5] * 3
