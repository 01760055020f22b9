import math

import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.rewards import apply_failure_rule, combine_rewards, subtract_kl
from grpo_pipeline.core.types import Rewards

F64 = torch.float64


def test_weighs_parts_in_float64_and_nan_leaves_a_sample_out_only_through_a_weighted_part():
    components = {"heat": torch.tensor([[-0.2, -0.4, math.nan]]), "class": torch.tensor([[-1.0, -3.0, 0.0]])}
    rewards = combine_rewards(components | {"free": torch.full((1, 3), math.nan)}, {"heat": 0.7, "class": 0.3, "free": 0.0})
    # 0.7 * -0.2 + 0.3 * -1 = -0.44;  0.7 * -0.4 + 0.3 * -3 = -1.18
    want = torch.tensor([[-0.44, -1.18, math.nan]], dtype=F64)
    torch.testing.assert_close(rewards.total, want, atol=1e-7, rtol=0, equal_nan=True)
    assert rewards.components["heat"] is components["heat"]
    assert dict(rewards.weights) == {"heat": 0.7, "class": 0.3, "free": 0.0}


@pytest.mark.parametrize(("rule", "penalty", "paid"), [("exclude", 0.0, math.nan), ("penalty", -5.0, -5.0)])
def test_a_failed_sample_is_left_out_or_pays_a_penalty(rule, penalty, paid):
    # The failed samples' own rewards are not read, whatever they are.
    total = torch.tensor([[1.0, 3.0, -math.inf], [2.0, math.nan, 4.0]])
    found = apply_failure_rule(total, torch.tensor([[False, False, True]] * 2), rule=rule, penalty=penalty)
    want = torch.tensor([[1.0, 3.0, paid], [2.0, math.nan, paid]], dtype=F64)
    torch.testing.assert_close(found, want, atol=0, rtol=0, equal_nan=True)


def test_kl_is_summed_over_valid_decisions_and_charged():
    total = torch.tensor([[1.0, math.nan, 2.0]])
    kl = torch.tensor([[[0.5, 0.25, math.nan], [1.0, 1.0, 1.0], [math.inf, math.nan, math.nan]]], requires_grad=True)
    is_valid = torch.tensor([[[True, True, False], [True, True, True], [False, False, False]]])
    # 1 - 2 * (0.5 + 0.25) = -0.5;  not scored stays so;  no decision, no charge
    for weight, want, penalty in [(2.0, -0.5, [1.5, 6.0, 0.0]), (0.0, 1.0, [0.0, 0.0, 0.0])]:
        got = subtract_kl(Rewards({}, total), kl, is_valid, weight=weight)
        charged = torch.tensor([[want, math.nan, 2.0]], dtype=F64)
        torch.testing.assert_close(got.total, charged, atol=0, rtol=0, equal_nan=True)
        assert got.kl_penalty.tolist() == [penalty]
        assert not (got.total + got.kl_penalty).requires_grad


ONES, FLAGS = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
PART, KL, VALID = {"a": ONES}, torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)


def fail(total=ONES, is_failed=FLAGS, **options):
    return apply_failure_rule(total, is_failed, **({"rule": "penalty"} | options))


def charge(total=ONES, kl=KL, is_valid=VALID, weight=1.0):
    return subtract_kl(Rewards({}, total), kl, is_valid, weight=weight)


test_refuses = refuses(
    (lambda: combine_rewards(PART, {"b": 1.0}), r"must name the components \['a'\], got \['b'\]"),
    (lambda: combine_rewards({"a": torch.ones(1, 2, requires_grad=True)}, {"a": 1.0}), r"no gradient, got one in \['a'\]"),
    (lambda: combine_rewards(PART, {"a": 0.0}), "some reward weight must be positive"),
    (lambda: combine_rewards({}, {}), "some reward weight must be positive, got {}"),
    (lambda: combine_rewards(PART | {"b": ONES}, {"a": 2.0, "b": -1.0}), "of 'b' must be finite and >= 0, got -1.0"),
    (lambda: combine_rewards(PART, {"a": math.inf}), "weight of 'a' must be finite and >= 0, got inf"),
    (lambda: combine_rewards({"a": ONES[0]}, {"a": 1.0}), r"must share one shape \[P, G\], got {'a': \[2\]}"),
    (lambda: combine_rewards(PART | {"b": ONES[:, :1]}, {"a": 1.0, "b": 1.0}), r"must share one shape \[P, G\]"),
    (lambda: combine_rewards({"a": torch.tensor([[0.0], [-math.inf]])}, {"a": 1.0}), "'a' must be finite or NaN .* prompt 1"),
    (lambda: fail(ONES[0], FLAGS[0]), r"total must have shape \[P, G\], got \[2\]"),
    (lambda: fail(is_failed=ONES), r"is_failed must be bool \[1, 2\], got torch.float32"),
    (lambda: fail(is_failed=FLAGS[:, :1]), r"is_failed must be bool \[1, 2\], got torch.bool \[1, 1\]"),
    (lambda: fail(rule="drop"), "'exclude' or 'penalty', got 'drop'"),
    (lambda: fail(penalty=-math.inf), "penalty must be finite, got -inf"),
    (lambda: fail(penalty=math.nan), "penalty must be finite, got nan"),
    (lambda: fail(rule="exclude", penalty=-1.0), "penalty must be 0 for rule 'exclude', got -1.0"),
    (lambda: fail(-ONES / 0, ~FLAGS), "total must be finite or NaN .* prompt 0"),
    (lambda: charge(ONES[0], KL[0], VALID[0]), r"total must have shape \[P, G\]"),
    (lambda: charge(kl=KL[..., 0], is_valid=VALID[..., 0]), r"must have shape \[P, G, L\]"),
    (lambda: charge(is_valid=VALID[..., :1]), r"got \[1, 2, 3\] and torch.bool"),
    (lambda: charge(is_valid=KL), "torch.float32"),
    (lambda: charge(weight=-0.1), "KL weight must be .* got -0.1"),
    (lambda: charge(weight=math.inf), "KL weight must be .* got inf"),
    (lambda: charge(ONES / 0), "infinite one"),
    (lambda: charge(kl=torch.tensor([[[0.0, -math.inf, 0.0]] * 2])), r"finite where valid, got -inf at \[0, 0, 1\]"),
)
