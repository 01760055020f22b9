import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.core.policy_gradient.algorithms import ALGORITHMS, LossOptions
from grpo_pipeline.core.policy_gradient.losses import SURROGATES, Units

F64 = torch.float64
numbers = st.floats(-20, 20)
advantages_of_any_sign = st.floats(-5, 5)


def surrogate(name, ratio, advantage, logprob=None, **options):
    """Loss and its derivative by l of one unit whose old log-probability is l - log r."""
    now = torch.tensor([[[math.log(ratio) if logprob is None else logprob]]], dtype=F64, requires_grad=True)
    old = now.detach() - math.log(ratio)
    units = Units(now, now - old, torch.ones(1, 1, 1, dtype=torch.bool))
    loss = SURROGATES[name](units, torch.tensor([[[advantage]]], dtype=F64), LossOptions(clip_low=0.2, clip_high=0.3, **options))
    loss.sum().backward()
    return float(loss.detach()), float(now.grad)


@pytest.mark.parametrize("name", ["ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -2.6, 0.0),  # min(1.5 * 2, 1.3 * 2) = 2.6: held at 1 + 0.3
        (1.5, -2.0, 3.0, 3.0),  # min(-3, -2.6) = -3: a bad action that became likelier is pushed back
        (0.5, 2.0, -1.0, -1.0),  # min(1, 1.6) = 1: a good action that became rarer is pulled up
        (0.5, -2.0, 1.6, 0.0),  # min(-1, -1.6) = -1.6: held at 1 - 0.2
        (1.1, 2.0, -2.2, -2.2),  # inside the bounds: d/dl of -r * A = -r * A
    ],
)
def test_golden_clipped_surrogate(name, ratio, advantage, loss, gradient):
    assert surrogate(name, ratio, advantage) == pytest.approx((loss, gradient), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (9.0, -2.0, 8.0, 0.0),  # r is held at 4: -4 * -2
        (3.0, -2.0, 6.0, 6.0),  # below 4 nothing changes
        (9.0, 2.0, -2.6, 0.0),  # A > 0: 1 + 0.3 holds first
        (0.5, -2.0, 1.6, 0.0),  # the lower bound as before
    ],
)
@pytest.mark.parametrize("bound", ["delta", "dual_clip"])
def test_golden_bounds_on_bad_actions(bound, ratio, advantage, loss, gradient):
    assert surrogate("grpo", ratio, advantage, **{bound: 4.0}) == pytest.approx((loss, gradient), abs=1e-12)


def test_a_dual_clip_inside_the_upper_bound_holds_earlier_than_it():
    # c = 1.1 < 1 + 0.3: loss is at most 1.1 * 2
    assert surrogate("grpo", 1.2, -2.0, dual_clip=1.1) == pytest.approx((2.2, 0.0), abs=1e-12)
    assert surrogate("grpo", 1.05, -2.0, dual_clip=1.1) == pytest.approx((2.1, 2.1), abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (2.0, 3.0, 2.0 * 3.0 * 0.5, -6.0),  # -2 * 3 * (-0.5); the weight 2 is a constant
        (9.0, 3.0, 5.0 * 3.0 * 0.5, -15.0),  # capped at 5, and still pulled
        (9.0, -3.0, -7.5, 15.0),  # capped for bad actions too
        (0.01, 3.0, 0.015, -0.03),  # no lower bound
    ],
)
def test_golden_cispo(ratio, advantage, loss, gradient):
    got = surrogate("cispo", ratio, advantage, logprob=-0.5, ratio_cap=5.0)
    assert got == pytest.approx((loss, gradient), abs=1e-12)


def test_golden_sapo():
    # r = 1: sigmoid(0) * 4 / t = 2 / t; derivative -A * r * t * (1/4) * 4 / t = -A
    assert surrogate("sapo", 1.0, 3.0) == pytest.approx((-6.0, -3.0), abs=1e-12)
    assert surrogate("sapo", 1.0, -3.0) == pytest.approx((6.0 / 1.05, 3.0), abs=1e-12)
    # r = 2, t = 1.0 (A > 0): s = 1 / (1 + e^-1); loss -A * 4 * s, derivative -A * 4 * s * (1 - s) * r
    s = 1 / (1 + math.exp(-1.0))
    assert surrogate("sapo", 2.0, 3.0) == pytest.approx((-12 * s, -12 * s * (1 - s) * 2), abs=1e-12)
    # r = 2, t = 1.05 (A < 0)
    s = 1 / (1 + math.exp(-1.05))
    assert surrogate("sapo", 2.0, -3.0) == pytest.approx((12 * s / 1.05, 12 * s * (1 - s) * 2), abs=1e-12)


def test_reinforce_ignores_the_ratio():
    assert surrogate("reinforce", 7.0, 3.0, logprob=-0.5) == (1.5, -3.0)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_at_ratio_one_every_gradient_is_minus_the_advantage(name, advantage):
    assert surrogate(name, 1.0, advantage)[1] == pytest.approx(-advantage, abs=1e-15)


@given(log_ratio=numbers, advantage=advantages_of_any_sign, bound=st.floats(1.31, 10))
@settings(max_examples=100)
def test_delta_and_dual_clip_are_one_bound_above_the_clip(log_ratio, advantage, bound):
    ratio = math.exp(log_ratio)
    delta, dual = (surrogate("grpo", ratio, advantage, **{name: bound}) for name in ("delta", "dual_clip"))
    assert delta[0] == pytest.approx(dual[0], rel=1e-13)
    if abs(ratio - bound) > 1e-6:
        assert delta[1] == pytest.approx(dual[1], rel=1e-13)


@given(log_ratio=numbers, advantage=advantages_of_any_sign, bound=st.floats(1.01, 10))
@settings(max_examples=100)
def test_the_dual_clip_bounds_bad_actions_and_leaves_good_ones_alone(log_ratio, advantage, bound):
    ratio = math.exp(log_ratio)
    loss, plain = surrogate("grpo", ratio, advantage, dual_clip=bound)[0], surrogate("grpo", ratio, advantage)[0]
    if advantage < 0:
        assert loss == pytest.approx(min(plain, bound * -advantage), rel=1e-13)
    else:
        assert loss == plain


@given(log_ratio=numbers, advantage=advantages_of_any_sign)
@settings(max_examples=100)
def test_the_gradient_of_sapo_is_that_of_the_ratio_times_a_bell_around_one(log_ratio, advantage):
    ratio, tau = math.exp(log_ratio), 1.0 if advantage > 0 else 1.05
    # sigmoid' = 1 / (4 cosh^2): -A * r / cosh^2(tau * (r - 1) / 2)
    bell = math.cosh(min(350.0, tau * abs(ratio - 1) / 2)) ** -2
    assert surrogate("sapo", ratio, advantage)[1] == pytest.approx(-advantage * ratio * bell, rel=1e-9, abs=1e-12)


def test_every_algorithm_has_a_surrogate():
    assert tuple(SURROGATES) == ALGORITHMS
