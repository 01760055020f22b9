import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli

from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag
from grpo_pipeline.tasks.attention.losses.entropy import heatmap_entropy


def test_entropy_is_that_of_bernoulli_variables(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, _ = made
    torch.testing.assert_close(heatmap_entropy(logits, bag), mean_in_bag(Bernoulli(logits=logits).entropy(), bag))
    assert float(heatmap_entropy(torch.zeros(1, 1, 2, 2), torch.ones(1, 2, 2))) == pytest.approx(math.log(2))
    logits = torch.tensor([200.0, -200.0, 0.0, 1e4]).reshape(1, 1, 2, 2).requires_grad_()
    entropy = heatmap_entropy(logits, torch.ones(1, 2, 2))
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2) / 4)
    assert torch.isfinite(logits.grad).all()


def test_gradients_equal_finite_differences(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, _ = made
    assert torch.autograd.gradcheck(lambda z: heatmap_entropy(z, bag), logits.clone().requires_grad_())
