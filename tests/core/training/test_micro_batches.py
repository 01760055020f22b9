from dataclasses import dataclass, fields

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
    inner: Inner
    named: dict[str, Tensor]
    number: float


VALUE = Outer(Inner(torch.arange(10).reshape(5, 2)), {"x": torch.arange(5.0), "weight": 2.0}, 0.5)


@pytest.mark.parametrize(("prompts", "size", "expected"), [(5, 2, [(0, 2), (2, 4), (4, 5)]), (4, 2, [(0, 2), (2, 4)]),
                                                           (3, 9, [(0, 3)]), (2, 1, [(0, 1), (1, 2)])])  # fmt: skip
def test_bounds(prompts: int, size: int, expected: list[tuple[int, int]]) -> None:
    assert bounds(prompts, size) == expected


@pytest.mark.parametrize("size", [1, 2, 5])
def test_cut_and_joined_it_is_the_same(size: int) -> None:
    parts = [take_prompts(VALUE, *place) for place in bounds(count_prompts(VALUE), size)]
    assert parts[0].inner.a.tolist() == VALUE.inner.a[:size].tolist()
    joined = join_prompts(parts)
    assert torch.equal(joined.inner.a, VALUE.inner.a)
    assert torch.equal(joined.named["x"], VALUE.named["x"])
    assert (joined.named["weight"], joined.number, joined.inner.absent) == (2.0, 0.5, None)
    assert [f.name for f in fields(joined)] == ["inner", "named", "number"]


@pytest.mark.parametrize("odd", [Inner(torch.zeros(5), torch.zeros(4, 5)), Inner(torch.zeros(())), Outer(None, {}, 1.0)])
def test_what_has_no_axis_of_prompts_is_refused(odd: object) -> None:
    with pytest.raises(ValueError, match="must have the prompts as its first axis to be cut into micro-batches, got the sizes"):
        count_prompts(odd)


@dataclass(frozen=True)
class WithTexts:
    number: Tensor
    texts: PerPrompt
    shared: tuple[str, ...]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_without_tensors_stay_with_their_prompts(size: int) -> None:
    value = WithTexts(torch.arange(3), PerPrompt([("a", "b"), ("c",), ()]), ("for", "all"))
    parts = [take_prompts(value, *place) for place in bounds(count_prompts(value), size)]
    assert [list(part.texts) for part in parts] == [list(value.texts[i : i + size]) for i in range(0, 3, size)]
    assert all(part.shared == value.shared and isinstance(part.texts, PerPrompt) for part in parts)
    joined = join_prompts(parts)
    assert (list(joined.texts), joined.shared) == (list(value.texts), value.shared)
    assert isinstance(joined.texts, PerPrompt)
