import re

import pytest
import torch
from tiny_graphs import prompts, random_graphs

from grpo_pipeline.tasks.molecules.graphs.graphs import (
    GraphPrompts,
    dense_pairs,
    entries_of,
    graphs_of,
    make_prompts,
    pair_index,
    pair_lookup,
    prompts_of,
)


def test_every_pair_has_one_entry() -> None:
    first, second = pair_index(4)
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    lookup = pair_lookup(4)
    assert torch.equal(lookup, lookup.T)
    assert lookup.diagonal().tolist() == [6] * 4
    assert lookup[first, second].tolist() == list(range(6))


def test_graphs_come_back_from_their_entries() -> None:
    graphs = random_graphs([4, 1, 3], 4)
    back = graphs_of(entries_of(graphs).each(lambda part: part.to(torch.uint8)), graphs.sizes)
    for name in ("atoms", "charges", "bonds", "sizes"):
        assert torch.equal(getattr(back, name), getattr(graphs, name))


def test_dense_pairs_put_each_pair_at_both_places() -> None:
    pairs = torch.randn(2, 3, 5)
    dense = dense_pairs(pairs, 3)
    for number, (i, j) in enumerate([(0, 1), (0, 2), (1, 2)]):
        assert torch.equal(dense[:, i, j], pairs[:, number])
        assert torch.equal(dense[:, j, i], pairs[:, number])
    assert not dense.diagonal(dim1=1, dim2=2).any()


def test_masks_count_each_entry_once() -> None:
    masks = prompts([3, 1, 4], 4).masks
    assert masks.atoms.sum(1).tolist() == [3, 1, 4]
    assert masks.charges.sum(1).tolist() == [3, 1, 4]
    assert masks.bonds.sum(1).tolist() == [3, 0, 6]  # n (n - 1) / 2
    graphs = random_graphs([3, 1, 4], 4)
    assert torch.equal(dense_pairs(masks.bonds, 4), graphs.pair_mask)


def test_repeated_prompts_keep_rows_of_a_group_adjacent() -> None:
    conditions = torch.tensor([[0.5], [1.5]])
    many = make_prompts(torch.tensor([2, 3]), 4, conditions).repeated(3)
    assert many.sizes.tolist() == [2, 2, 2, 3, 3, 3]
    assert many.conditions[:, 0].tolist() == [0.5] * 3 + [1.5] * 3
    assert prompts_of(random_graphs([2, 3], 4)).nodes == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_prompts(torch.tensor([2, 5]), 4), "sizes must be between 1 and 4, got 2 to 5"),
        (lambda: make_prompts(torch.tensor([0, 2]), 4), "sizes must be between 1 and 4, got 0 to 2"),
        (lambda: GraphPrompts(torch.tensor([2.0]), torch.zeros(1, 0), 3), "sizes must be int64 [P], got torch.float32"),
        (lambda: make_prompts(torch.tensor([2]), 3, torch.zeros(2, 1)), "conditions must have shape [1, F], got [2, 1]"),
    ],
)
def test_what_does_not_fit_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
