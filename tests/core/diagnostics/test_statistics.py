import math

import pytest
import torch
from torch import nn

from grpo_pipeline.core.diagnostics.statistics import gradient_report, ratio_statistics
from grpo_pipeline.core.policy_gradient.algorithms import LossOptions
from grpo_pipeline.core.policy_gradient.losses import policy_loss

F64 = torch.float64


def statistics(ratios, advantages, level="decision", is_valid=None, **options):
    logprobs = torch.tensor(ratios, dtype=F64).log()
    is_valid = torch.ones_like(logprobs, dtype=torch.bool) if is_valid is None else is_valid
    advantages = torch.tensor(advantages, dtype=F64)
    return ratio_statistics(
        logprobs, torch.zeros_like(logprobs), advantages, is_valid, clip_low=0.2, clip_high=0.3, ratio_level=level, **options
    )


def test_golden_ratios_per_decision():
    got = statistics([[[0.5, 1.0], [1.5, 2.0]]], [[-1.0, 1.0]])
    # r = 0.5, 1, 1.5, 2: mean 1.25; low: only 0.5 < 0.8 with A < 0; high: 1.5 and 2 > 1.3 with A > 0
    assert got["policy/ratio_mean"] == pytest.approx(1.25)
    assert got["policy/ratio_max"] == pytest.approx(2.0)
    assert got["policy/clip_low"] == 0.25
    assert got["policy/clip_high"] == 0.5
    # (5)^2 / (4 * (0.25 + 1 + 2.25 + 4)) = 25 / 30
    assert got["policy/ess"] == pytest.approx(25 / 30)
    # mean of r - 1 - log r = 0.25 - log(0.5 * 1 * 1.5 * 2) / 4 = 0.25 - log(1.5) / 4
    assert got["kl/rollout"] == pytest.approx(0.25 - math.log(1.5) / 4)


def test_golden_joint_ratio_leaves_invalid_decisions_out():
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    got = statistics([[[2.0, 0.25, 9.0], [9.0, 9.0, 9.0]]], [[1.0, 1.0]], "joint", is_valid)
    assert got["policy/ratio_mean"] == pytest.approx(0.5)
    assert got["policy/ess"] == pytest.approx(1.0)
    assert got["kl/rollout"] == pytest.approx(0.5 - 1 + math.log(2))


FAR = ([[[0.1, 9.0]], [[0.1, 9.0]], [[0.1, 9.0]]], [[1.0], [-1.0], [0.0]])


@pytest.mark.parametrize(
    ("algorithm", "low", "high"),
    [
        # r = 0.1 and 9 for A = 1, -1, 0: of six units one is held below (0.1, A < 0) and one above (9, A > 0).
        *((name, 1 / 6, 1 / 6) for name in ("ppo", "grpo", "dr_grpo", "dapo", "bnpo")),
        # The cap holds the ratio of 9 whatever the advantage; nothing below.
        ("cispo", 0.0, 3 / 6),
        ("sapo", 0.0, 0.0),
        ("reinforce", 0.0, 0.0),
    ],
)
def test_the_clip_is_reported_for_algorithms_that_have_one(algorithm, low, high):
    got = statistics(*FAR, algorithm=algorithm)
    assert (got["policy/clip_low"], got["policy/clip_high"]) == pytest.approx((low, high))
    assert "policy/clip_dual" not in got
    assert got["policy/ratio_max"] == pytest.approx(9.0)


def test_the_cap_of_cispo_is_its_own_bound_and_not_clip_high():
    assert statistics(*FAR, algorithm="cispo", options=LossOptions(ratio_cap=9.5))["policy/clip_high"] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_valid": torch.zeros(1, 1, 1, dtype=torch.bool)}, "at least one decision must be valid"),
        ({"algorithm": "ppo2"}, "algorithm must be one of .* got 'ppo2'"),
        ({"level": "row"}, "ratio_level must be one of .* got 'row'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        statistics([[[1.0]]], [[1.0]], **options)


@pytest.mark.parametrize("options", [LossOptions(delta=4.0), LossOptions(dual_clip=4.0)])
def test_the_bound_on_bad_actions_has_its_own_share(options):
    got = statistics(*FAR, options=options)
    # Only r = 9 with A = -1 is above 4.
    assert got["policy/clip_dual"] == pytest.approx(1 / 6)
    assert got["policy/clip_high"] == pytest.approx(1 / 6)
    assert statistics(*FAR, options=LossOptions(delta=9.5))["policy/clip_dual"] == 0.0


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "sapo", "reinforce"])
@pytest.mark.parametrize("options", [LossOptions(), LossOptions(delta=1.5), LossOptions(dual_clip=1.1)])
def test_the_shares_count_exactly_the_units_without_gradient(algorithm, options):
    if algorithm in ("sapo", "reinforce"):
        options = LossOptions()
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(4, 5, 1, dtype=F64, generator=generator, requires_grad=True)
    old, advantages = torch.zeros(4, 5, 1, dtype=F64), torch.randn(4, 5, dtype=F64, generator=generator)
    is_valid = torch.rand(4, 5, 1, generator=generator) < 0.8
    names = {
        "algorithm": algorithm,
        "options": options,
        "clip_low": 0.2,
        "clip_high": 0.3,
        "ratio_level": "sequence" if algorithm == "gspo" else "decision",
    }
    policy_loss(new, old, advantages, is_valid, **names).backward()
    silent = float((new.grad[is_valid] == 0).double().mean())
    got = ratio_statistics(new.detach(), old, advantages, is_valid, **names)
    shares = [got[name] for name in ("policy/clip_low", "policy/clip_high", "policy/clip_dual") if name in got]
    assert sum(shares) == pytest.approx(silent)
    assert silent > 0 or algorithm in ("sapo", "reinforce")


def test_golden_sequence_ratio():
    # Row 0: r = 4, 1 (and a masked 9): geometric mean 2; row 1: r = 1/4 alone; row 2: wholly masked.
    is_valid = torch.tensor([[[True, True, False], [True, False, False], [False, False, False]]])
    got = statistics(
        [[[4.0, 1.0, 9.0], [0.25, 9.0, 9.0], [9.0, 9.0, 9.0]]], [[1.0, -1.0, 1.0]], "sequence", is_valid, algorithm="gspo"
    )
    assert got["policy/ratio_mean"] == pytest.approx((2 + 0.25) / 2)
    assert got["policy/ratio_max"] == pytest.approx(2.0)
    assert (got["policy/clip_low"], got["policy/clip_high"]) == (0.5, 0.5)
    # 2.25^2 / (2 * (4 + 1/16))
    assert got["policy/ess"] == pytest.approx(2.25**2 / (2 * 4.0625))
    # Per decision, r = 4, 1, 1/4: r - 1 - log r = 3 - log 4, 0, -3/4 + log 4
    assert got["kl/rollout"] == pytest.approx((3 - 0.75) / 3)


def test_a_ratio_that_underflows_leaves_the_others_finite():
    got = ratio_statistics(
        torch.full((1, 1, 2), -500.0),
        torch.zeros(1, 1, 2),
        torch.ones(1, 1),
        torch.ones(1, 1, 2, dtype=torch.bool),
        ratio_level="joint",
    )
    # r = exp(-1000) = 0 in float64: r - 1 - log r = 999
    assert got["kl/rollout"] == pytest.approx(999.0)
    assert got["policy/ess"] == 1.0


@pytest.fixture
def net():
    module = nn.Module()
    module.a = nn.Parameter(torch.tensor([1.0, 2.0]))
    module.b = nn.Parameter(torch.tensor([3.0]))
    return module


def report(net, terms, weights):
    return gradient_report(terms, weights, {"a": [net.a], "b": [net.b]})


def test_golden_gradient_report(net):
    terms = {"supervised": 3 * net.a[0] + 4 * net.b[0], "policy": net.a.sum(), "kl": 2 * net.a[1]}
    got = report(net, terms, {"supervised": 2.0, "policy": 1.0, "kl": 0.5})
    # weighted gradients (a0, a1 | b): supervised (6, 0 | 8), policy (1, 1 | 0), kl (0, 1 | 0), rl (1, 2 | 0)
    want = {
        "grad_norm/supervised": 10.0,
        "group_grad_norm/supervised/a": 6.0,
        "group_grad_norm/supervised/b": 8.0,
        "grad_norm/policy": math.sqrt(2),
        "group_grad_norm/policy/a": math.sqrt(2),
        "group_grad_norm/policy/b": 0.0,
        "grad_norm/kl": 1.0,
        "group_grad_norm/kl/a": 1.0,
        "group_grad_norm/kl/b": 0.0,
        "grad_norm/rl": math.sqrt(5),
        "group_grad_norm/rl/a": math.sqrt(5),
        "group_grad_norm/rl/b": 0.0,
        "grad_cosine/supervised_rl": 6 / (10 * math.sqrt(5)),
        "group_grad_cosine/supervised_rl/a": 6 / (6 * math.sqrt(5)),
        "dead/supervised": 0.0,
        "dead/policy": 0.0,
        "dead/kl": 0.0,
    }
    assert got == pytest.approx(want, abs=1e-12)


def test_dead_terms_are_named_and_weights_of_zero_are_not(net):
    terms = {
        "supervised": net.a.sum(),
        "constant": torch.tensor(3.0),
        "cancelled": 0.0 * net.b.sum(),
        "unused": net.b.sum(),
        "tiny": 1e-30 * net.b.sum(),
    }
    got = report(net, terms, {"supervised": 1.0, "constant": 1.0, "cancelled": 1.0, "unused": 0.0, "tiny": 1.0})
    assert {name: value for name, value in got.items() if name.startswith("dead/")} == {
        "dead/supervised": 0.0,
        "dead/constant": 1.0,
        "dead/cancelled": 1.0,
        "dead/tiny": 0.0,
    }
    assert "grad_norm/unused" not in got


def test_an_undefined_angle_is_absent(net):
    got = report(net, {"supervised": net.a.sum(), "policy": 0.0 * net.a.sum()}, {"supervised": 1.0, "policy": 1.0})
    assert not [name for name in got if "cosine" in name]
    assert got["grad_norm/rl"] == 0.0


def test_report_touches_neither_grad_nor_graph(net):
    net.a.grad = torch.tensor([7.0, 7.0])
    terms = {"supervised": (net.a**2).sum(), "policy": (net.b**3).sum()}
    report(net, terms, {"supervised": 1.0, "policy": 1.0})
    assert net.a.grad.tolist() == [7.0, 7.0]
    assert net.b.grad is None
    (terms["supervised"] + terms["policy"]).backward()
    assert net.b.grad.tolist() == [27.0]


def test_frozen_parameters_and_the_supervised_control_alone(net):
    net.b.requires_grad_(False)
    got = report(net, {"supervised": 3 * net.a[0] + net.b[0]}, {"supervised": 1.0})
    assert got["grad_norm/supervised"] == 3.0
    assert got["grad_norm/rl"] == 0.0
