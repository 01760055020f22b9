import math

import pytest
import torch

from grpo_pipeline.core.policy_gradient.algorithms import ALGORITHMS, LossOptions
from grpo_pipeline.core.policy_gradient.losses import SURROGATES, Units

F64 = torch.float64


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


CLIPPED = [
    (1.5, 2.0, -2.6, 0.0),  # min(1.5 * 2, 1.3 * 2) = 2.6: held at 1 + 0.3
    (1.5, -2.0, 3.0, 3.0),  # min(-3, -2.6) = -3: a bad action that became likelier is pushed back
    (0.5, 2.0, -1.0, -1.0),  # min(1, 1.6) = 1: a good action that became rarer is pulled up
    (0.5, -2.0, 1.6, 0.0),  # min(-1, -1.6) = -1.6: held at 1 - 0.2
    (1.1, 2.0, -2.2, -2.2),  # inside the bounds: d/dl of -r * A = -r * A
]
BOUNDED = [
    (9.0, -2.0, 8.0, 0.0),  # r is held at 4: -4 * -2
    (3.0, -2.0, 6.0, 6.0),  # below 4 nothing changes
    (9.0, 2.0, -2.6, 0.0),  # A > 0: 1 + 0.3 holds first
    (0.5, -2.0, 1.6, 0.0),  # the lower bound as before
]
GOLDEN = [
    *((name, {}, row) for name in ("ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo") for row in CLIPPED),
    *(("grpo", {bound: 4.0}, row) for bound in ("delta", "dual_clip") for row in BOUNDED),
    # A dual clip inside of the upper bound holds earlier: the loss is at most 1.1 * 2.
    ("grpo", {"dual_clip": 1.1}, (1.2, -2.0, 2.2, 0.0)),
    ("grpo", {"dual_clip": 1.1}, (1.05, -2.0, 2.1, 2.1)),
    # l = -0.5: -2 * 3 * (-0.5), and the weight 2 is a constant; capped at 5 on both sides, and still pulled; no lower bound.
    ("cispo", {"ratio_cap": 5.0}, (2.0, 3.0, 3.0, -6.0)),
    ("cispo", {"ratio_cap": 5.0}, (9.0, 3.0, 7.5, -15.0)),
    ("cispo", {"ratio_cap": 5.0}, (9.0, -3.0, -7.5, 15.0)),
    ("cispo", {"ratio_cap": 5.0}, (0.01, 3.0, 0.015, -0.03)),
    # r = 1: sigmoid(0) * 4 / t = 2 / t; derivative -A * r * t * (1/4) * 4 / t = -A; t = 1.0 for A > 0, 1.05 for A < 0
    ("sapo", {}, (1.0, 3.0, -6.0, -3.0)),
    ("sapo", {}, (1.0, -3.0, 6.0 / 1.05, 3.0)),
    # loss -A * 4 / t * s, derivative -A * 4 * s * (1 - s) * r
    ("sapo", {}, (2.0, 3.0, -12 * sigmoid(1.0), -24 * sigmoid(1.0) * sigmoid(-1.0))),
    ("sapo", {}, (2.0, -3.0, 12 * sigmoid(1.05) / 1.05, 24 * sigmoid(1.05) * sigmoid(-1.05))),
    ("reinforce", {}, (7.0, 3.0, 1.5, -3.0)),
]


@pytest.mark.parametrize(("name", "options", "row"), GOLDEN)
def test_golden_loss_and_gradient_of_one_unit(name, options, row):
    ratio, advantage, *want = row
    now = torch.full((1, 1, 1), -0.5, dtype=F64, requires_grad=True)
    units = Units(now, now - (now.detach() - math.log(ratio)), torch.ones(1, 1, 1, dtype=torch.bool))
    loss = SURROGATES[name](units, torch.tensor([[[advantage]]], dtype=F64), LossOptions(clip_low=0.2, clip_high=0.3, **options))
    loss.sum().backward()
    assert [float(loss.detach()), float(now.grad)] == pytest.approx(want, abs=1e-12)


def test_every_algorithm_has_a_surrogate():
    assert tuple(SURROGATES) == ALGORITHMS
