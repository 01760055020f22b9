import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_objectives import bag_batch, bag_outcomes, bce, params, pixels
from torch import Tensor

from grpo_pipeline.tasks.attention.losses.mil import multiple_instance_loss
from grpo_pipeline.tasks.attention.losses.supervised_loss import supervised_loss

G = 2  # samples in ``made``


def test_multiple_instances_equal_a_naive_loop(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    for share in (0.2, 0.5, 1.0, 1e-6):
        got = multiple_instance_loss(logits, bag, label, share)
        for p, g in np.ndindex(2, G):
            losses = sorted(bce(z, float(label[p, g])) for z, _ in pixels(logits, bag, p, g))
            kept = losses[: math.ceil(share * len(losses))]
            assert float(got[p, g]) == pytest.approx(sum(kept) / len(kept), rel=1e-12)
        assert got[2].tolist() == [0.0, 0.0]
    # 0.28 of 25 pixels is 7.000000000000001 in float64 and must keep 7, the zeros.
    logits = torch.where(torch.arange(25) < 7, -50.0, 1.0).reshape(1, 1, 5, 5).double()
    assert 0.28 * 25 > 7
    got = multiple_instance_loss(logits, torch.ones(1, 5, 5), torch.zeros(1, 1, dtype=torch.float64), 0.28)
    assert float(got) < 1e-9


def test_cells_as_instances_do_not_see_a_pattern_that_every_cell_repeats():
    """The same quarter of each cell's pixels can say the label to pixels as instances; of cells the mean is asked."""
    targets = bag_batch(cores=2)
    pattern = torch.full((4, 4), -3.0)
    pattern[0] = 9.0  # the mean of a cell is 0
    made = replace(bag_outcomes(targets), mask_logits=pattern.repeat(3, 3)[None, None].expand(2, 3, 12, 12))
    targets = replace(targets, bag=torch.ones(2, 12, 12), label=torch.ones(2, 3))
    chosen = {"class": None, "heatmap": None, "mil": {"weight": 1.0, "share": 0.25}}
    of_pixels, of_cells = (
        float(supervised_loss(targets, made, params(chosen, {"mil": {"instances": on}}), glimpse_involvement=None))
        for on in ("pixels", "cells")
    )
    assert of_pixels < 0.001
    assert of_cells == pytest.approx(math.log(2), rel=1e-6)
    # A bag that covers two of nine cells: a quarter of two is one, the cell that fits best.
    bag = torch.zeros(2, 12, 12)
    bag[:, 1, 2:6] = 0.5
    z = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    found = supervised_loss(
        replace(targets, bag=bag),
        replace(made, mask_logits=z),
        params(chosen, {"mil": {"instances": "cells"}}),
        glimpse_involvement=None,
    )
    means = torch.stack([z[..., :4, :4].mean((2, 3)), z[..., :4, 4:8].mean((2, 3))])
    torch.testing.assert_close(found, torch.nn.functional.softplus(-means).amin(0).mean())


def test_gradients_equal_finite_differences(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    assert torch.autograd.gradcheck(lambda z: multiple_instance_loss(z, bag, label, 0.3), logits.clone().requires_grad_())
