from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from grpo_pipeline.core.types import replicate, replicate_tree, to_groups, to_rows


def test_replicate_copies_nothing_and_keeps_rows_of_a_group_adjacent():
    x = torch.arange(6.0).reshape(3, 2)
    groups = replicate(x, 4)
    assert groups.shape == (3, 4, 2)
    assert groups.data_ptr() == x.data_ptr()
    assert groups.stride(1) == 0
    # Row n = p * G + g: prompt 1 of group size 4 owns the rows 4..7.
    assert torch.equal(to_rows(groups)[4:8], x[1].expand(4, 2))


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3, 4)])
@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_rows_agree_with_repeat_interleave_and_go_back(shape, group_size):
    x = torch.randn(shape)
    rows = to_rows(replicate(x, group_size))
    assert torch.equal(rows, x.repeat_interleave(group_size, dim=0))
    assert torch.equal(to_groups(rows, group_size), replicate(x, group_size))


class Pair(NamedTuple):
    a: torch.Tensor
    b: str


@dataclass(frozen=True)
class Batch:
    images: torch.Tensor
    nested: dict
    pair: Pair
    items: list
    name: str
    missing: None = None


def test_replicate_tree_reaches_every_tensor_and_leaves_the_rest():
    x = torch.randn(2, 3)
    batch = replicate_tree(Batch(images=x, nested={"y": x[:, 0]}, pair=Pair(x, "b"), items=[x, 1], name="n"), 5)
    assert isinstance(batch, Batch)
    assert [batch.images.shape, batch.nested["y"].shape, batch.pair.a.shape, batch.items[0].shape] == [
        (2, 5, 3),
        (2, 5),
        (2, 5, 3),
        (2, 5, 3),
    ]
    assert (batch.pair.b, batch.items[1], batch.name, batch.missing) == ("b", 1, "n", None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replicate(torch.ones(2), 0), "group_size must be at least 1, got 0"),
        (lambda: to_groups(torch.ones(7), 2), "multiple of group_size 2, got 7"),
        (lambda: to_rows(torch.ones(7)), r"at least the two axes \[P, G\], got shape \(7,\)"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
