import math

import pytest
import torch
from torch import nn

from grpo_pipeline.core.diagnostics import gradient_report, ratio_statistics

F64 = torch.float64


def statistics(ratios, advantages, level="decision", is_valid=None):
    logprobs = torch.tensor(ratios, dtype=F64).log()
    is_valid = torch.ones_like(logprobs, dtype=torch.bool) if is_valid is None else is_valid
    advantages = torch.tensor(advantages, dtype=F64)
    return ratio_statistics(
        logprobs, torch.zeros_like(logprobs), advantages, is_valid, clip_low=0.2, clip_high=0.3, ratio_level=level
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


def test_the_clip_counts_only_where_it_removes_a_gradient():
    got = statistics([[[0.5], [1.5]]], [[1.0, -1.0]])
    assert (got["policy/clip_low"], got["policy/clip_high"]) == (0.0, 0.0)


def test_golden_joint_ratio_leaves_invalid_decisions_out():
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    got = statistics([[[2.0, 0.25, 9.0], [9.0, 9.0, 9.0]]], [[1.0, 1.0]], "joint", is_valid)
    assert got["policy/ratio_mean"] == pytest.approx(0.5)
    assert got["policy/ess"] == pytest.approx(1.0)
    assert got["kl/rollout"] == pytest.approx(0.5 - 1 + math.log(2))


def test_first_update_reads_exactly_one():
    got = statistics([[[1.0, 1.0]]], [[3.0]])
    assert got == {
        "policy/ratio_mean": 1.0,
        "policy/ratio_max": 1.0,
        "policy/clip_low": 0.0,
        "policy/clip_high": 0.0,
        "policy/ess": 1.0,
        "kl/rollout": 0.0,
    }


def test_kl_to_the_rollout_policy_is_unbiased():
    old, new = torch.tensor([0.6, 0.3, 0.1], dtype=F64), torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    exact = float((old * (old / new).log()).sum())
    # Draw each choice as often as the rollout policy would: 6, 3 and 1 of 10.
    actions = torch.tensor([0] * 6 + [1] * 3 + [2]).reshape(1, 10, 1)
    got = ratio_statistics(
        new.log()[actions],
        old.log()[actions],
        torch.zeros(1, 10),
        torch.ones_like(actions, dtype=torch.bool),
        clip_low=0.2,
        clip_high=0.2,
        ratio_level="decision",
    )
    assert got["kl/rollout"] == pytest.approx(exact, abs=1e-12)


def test_refuses_rollouts_without_a_valid_decision():
    with pytest.raises(ValueError, match="at least one decision must be valid"):
        statistics([[[1.0]]], [[1.0]], is_valid=torch.zeros(1, 1, 1, dtype=torch.bool))


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
