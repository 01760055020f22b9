from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.groups import replicate, replicate_tree, to_groups, to_rows


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3, 4)])
@pytest.mark.parametrize("group_size", [1, 2, 7])
def test_rows_agree_with_repeat_interleave_and_go_back_and_nothing_is_copied(shape, group_size):
    x = torch.randn(shape)
    groups = replicate(x, group_size)
    assert groups.shape == (5, group_size, *shape[1:])
    assert groups.data_ptr() == x.data_ptr()
    rows = to_rows(groups)
    assert torch.equal(rows, x.repeat_interleave(group_size, dim=0))
    assert torch.equal(to_groups(rows, group_size), groups)


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
    found = batch.images, batch.nested["y"], batch.pair.a, batch.items[0]
    assert [tuple(tensor.shape) for tensor in found] == [(2, 5, 3), (2, 5), (2, 5, 3), (2, 5, 3)]
    assert (batch.pair.b, batch.items[1], batch.name, batch.missing) == ("b", 1, "n", None)


test_refuses = refuses(
    (lambda: replicate(torch.ones(2), 0), "group_size must be at least 1, got 0"),
    (lambda: to_groups(torch.ones(7), 2), "multiple of group_size 2, got 7"),
    (lambda: to_rows(torch.ones(7)), r"at least the two axes \[P, G\], got shape \(7,\)"),
)
