import numpy as np
import pytest
import torch
from tiny_objectives import bce, pixels
from torch import Tensor

from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag
from grpo_pipeline.tasks.attention.losses.label_loss import symmetric_cross_entropy
from grpo_pipeline.tasks.attention.losses.needle import needle_cross_entropy
from grpo_pipeline.tasks.attention.losses.params import NeedleLoss

G = 2  # samples in ``made``


def test_needle_cross_entropy_equals_a_naive_loop(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    got = needle_cross_entropy(logits, bag, label, NeedleLoss(weight=1.0, positive_weight=3.0))
    for p, g in np.ndindex(2, G):
        inside, y = pixels(logits, bag, p, g), float(label[p, g])
        expected = sum(w * (3.0 if y else 1.0) * bce(z, y) for z, w in inside) / sum(w for _, w in inside)
        assert float(got[p, g]) == pytest.approx(expected, rel=1e-12)
    assert got[2].tolist() == [0.0, 0.0]
    chosen = NeedleLoss(weight=1.0, form="symmetric")
    pixel = symmetric_cross_entropy(logits, label[:, :, None, None].expand_as(logits))
    torch.testing.assert_close(needle_cross_entropy(logits, bag, label, chosen), mean_in_bag(pixel, bag))


def test_gradients_equal_finite_differences(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    for loss in (
        lambda z: needle_cross_entropy(z, bag, label, NeedleLoss(weight=1.0, positive_weight=2.0)),
        lambda z: needle_cross_entropy(z, bag, label, NeedleLoss(weight=1.0, form="symmetric")),
    ):
        assert torch.autograd.gradcheck(loss, logits.clone().requires_grad_())
