from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from grpo_pipeline.core.training.micro_batches import PerPrompt, bounds, count_prompts, join_prompts, take_prompts


@dataclass(frozen=True)
class Inner:
    a: Tensor
    absent: Tensor | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    named: dict[str, Tensor]
    number: float
    texts: PerPrompt
    shared: tuple[str, ...] = ("for", "all")


TEXTS = PerPrompt([("a", "b"), ("c",), (), ("d",), ("e",)])
VALUE = Outer(Inner(torch.arange(10).reshape(5, 2)), {"x": torch.arange(5.0), "weight": 2.0}, 0.5, TEXTS)


@pytest.mark.parametrize(("prompts", "size", "expected"), [(5, 2, [(0, 2), (2, 4), (4, 5)]), (4, 2, [(0, 2), (2, 4)]),
                                                           (3, 9, [(0, 3)]), (2, 1, [(0, 1), (1, 2)])])  # fmt: skip
def test_bounds(prompts: int, size: int, expected: list[tuple[int, int]]) -> None:
    assert bounds(prompts, size) == expected


@pytest.mark.parametrize("size", [1, 2, 5])
def test_cut_and_joined_it_is_the_same(size: int) -> None:
    parts = [take_prompts(VALUE, *place) for place in bounds(count_prompts(VALUE), size)]
    for part, start in zip(parts, range(0, 5, size), strict=True):
        assert part.inner.a.tolist() == VALUE.inner.a[start : start + size].tolist()
        assert list(part.texts) == list(VALUE.texts[start : start + size])
        assert (isinstance(part.texts, PerPrompt), part.shared) == (True, VALUE.shared)
    joined = join_prompts(parts)
    assert torch.equal(joined.inner.a, VALUE.inner.a)
    assert torch.equal(joined.named["x"], VALUE.named["x"])
    assert (joined.named["weight"], joined.number, joined.inner.absent) == (2.0, 0.5, None)
    assert (type(joined.texts), list(joined.texts), joined.shared) == (PerPrompt, list(VALUE.texts), VALUE.shared)


@pytest.mark.parametrize(
    "odd", [Inner(torch.zeros(5), torch.zeros(4, 5)), Inner(torch.zeros(())), Outer(None, {}, 1.0, PerPrompt())]
)
def test_what_has_no_axis_of_prompts_is_refused(odd: object) -> None:
    with pytest.raises(ValueError, match="must have the prompts as its first axis to be cut into micro-batches, got the sizes"):
        count_prompts(odd)
