import math
from typing import Any

import pytest
import torch
from tiny_attention import section
from torch import Tensor
from torch.distributions import Bernoulli

from grpo_pipeline.tasks.attention.losses import (
    heatmap_entropy,
    mean_in_bag,
    multiple_instance_loss,
    needle_cross_entropy,
    symmetric_cross_entropy,
)
from grpo_pipeline.tasks.attention.params import SupervisedParams

P, G, SIDE = 3, 2, 5


def params(**changes: Any) -> SupervisedParams:
    return SupervisedParams.model_validate(section("supervised_loss", **changes))


@pytest.fixture
def made() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a bag of partly covered pixels (the last core's is empty) and labels 1, 0, 1."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(P, G, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag = torch.rand(P, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag[bag < 0.4] = 0.0
    bag[2] = 0.0
    return logits, bag, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def bce(z: float, y: float) -> float:
    return math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z))


def pixels(logits: Tensor, bag: Tensor, p: int, g: int) -> list[tuple[float, float]]:
    """Return (logit, coverage) of each pixel of the bag."""
    found = zip(logits[p, g].flatten().tolist(), bag[p].flatten().tolist(), strict=True)
    return [(z, w) for z, w in found if w > 0]


def test_needle_cross_entropy_equals_a_naive_loop(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    got = needle_cross_entropy(logits, bag, label, params(needle_positive_weight=3.0))
    for p in range(2):
        for g in range(G):
            inside, y = pixels(logits, bag, p, g), float(label[p, g])
            scale = 3.0 if y else 1.0
            expected = sum(w * scale * bce(z, y) for z, w in inside) / sum(w for _, w in inside)
            assert float(got[p, g]) == pytest.approx(expected, rel=1e-12)
    assert got[2].tolist() == [0.0, 0.0]


def test_the_symmetric_form_reaches_the_pixels(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    chosen = params(needle_form="symmetric", symmetric={"alpha": 0.5, "beta": 2.0, "log_zero": -3.0})
    pixel = symmetric_cross_entropy(logits, label[:, :, None, None].expand_as(logits), chosen.symmetric)
    torch.testing.assert_close(needle_cross_entropy(logits, bag, label, chosen), mean_in_bag(pixel, bag))


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0, 1e-6])
def test_multiple_instances_equal_a_naive_loop(made: tuple[Tensor, Tensor, Tensor], share: float):
    logits, bag, label = made
    got = multiple_instance_loss(logits, bag, label, share)
    for p in range(2):
        for g in range(G):
            losses = sorted(bce(z, float(label[p, g])) for z, _ in pixels(logits, bag, p, g))
            kept = losses[: math.ceil(share * len(losses))]
            assert float(got[p, g]) == pytest.approx(sum(kept) / len(kept), rel=1e-12)
    assert got[2].tolist() == [0.0, 0.0]


def test_a_share_that_is_not_exact_in_binary_keeps_its_number():
    """0.28 of 25 pixels is 7.000000000000001 in float64 and must keep 7, the zeros."""
    logits = torch.where(torch.arange(25) < 7, -50.0, 1.0).reshape(1, 1, 5, 5).double()
    assert 0.28 * 25 > 7
    got = multiple_instance_loss(logits, torch.ones(1, 5, 5), torch.zeros(1, 1, dtype=torch.float64), 0.28)
    assert float(got) < 1e-9


def test_entropy_is_that_of_bernoulli_variables(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, _ = made
    torch.testing.assert_close(heatmap_entropy(logits, bag), mean_in_bag(Bernoulli(logits=logits).entropy(), bag))
    assert float(heatmap_entropy(torch.zeros(1, 1, 2, 2), torch.ones(1, 2, 2))) == pytest.approx(math.log(2))


def test_entropy_is_finite_where_the_heatmap_is_sure():
    logits = torch.tensor([200.0, -200.0, 0.0, 1e4]).reshape(1, 1, 2, 2).requires_grad_()
    entropy = heatmap_entropy(logits, torch.ones(1, 2, 2))
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2) / 4)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", ["needle", "needle_symmetric", "mil", "entropy"])
def test_gradients_equal_finite_differences(made: tuple[Tensor, Tensor, Tensor], name: str):
    logits, bag, label = made
    losses = {
        "needle": lambda z: needle_cross_entropy(z, bag, label, params(needle_positive_weight=2.0)),
        "needle_symmetric": lambda z: needle_cross_entropy(z, bag, label, params(needle_form="symmetric")),
        "mil": lambda z: multiple_instance_loss(z, bag, label, 0.3),
        "entropy": lambda z: heatmap_entropy(z, bag),
    }
    assert torch.autograd.gradcheck(losses[name], logits.clone().requires_grad_())
