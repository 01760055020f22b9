import math

import pytest
import torch

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.rewards import apply_failure_rule, combine_rewards, subtract_kl
from grpo_pipeline.core.types import Rewards

F64 = torch.float64


def test_weighs_parts_in_float64():
    parts = {"heat": torch.tensor([[-0.2, -0.4]]), "class": torch.tensor([[-1.0, -3.0]])}
    rewards = combine_rewards(parts, {"heat": 0.7, "class": 0.3})
    # 0.7 * -0.2 + 0.3 * -1 = -0.44;  0.7 * -0.4 + 0.3 * -3 = -1.18
    assert rewards.total.dtype == torch.float64
    torch.testing.assert_close(rewards.total, torch.tensor([[-0.44, -1.18]], dtype=torch.float64), atol=1e-7, rtol=0)
    assert rewards.parts["heat"] is parts["heat"]


def test_nan_marks_a_sample_unscored_only_through_a_weighted_part():
    parts = {"a": torch.tensor([[1.0, math.nan]]), "b": torch.tensor([[math.nan, 2.0]])}
    total = combine_rewards(parts, {"a": 1.0, "b": 0.0}).total
    assert total[0, 0] == 1.0
    assert total[0, 1].isnan()


def test_the_record_keeps_the_weights():
    weights = {"a": 1.0, "b": 0.0}
    rewards = combine_rewards({"a": torch.ones(1, 2), "b": torch.zeros(1, 2)}, weights)
    assert dict(rewards.weights) == {"a": 1.0, "b": 0.0}
    assert rewards.weights is not weights


@pytest.mark.parametrize(
    ("parts", "weights", "message"),
    [
        ({"a": torch.ones(1, 2)}, {"b": 1.0}, r"must name the parts \['a'\], got \['b'\]"),
        ({"a": torch.ones(1, 2, requires_grad=True)}, {"a": 1.0}, r"must carry no gradient, got one in \['a'\]"),
        ({"a": torch.ones(1, 2)}, {"a": 0.0}, "some reward weight must be positive"),
        ({}, {}, "some reward weight must be positive, got {}"),
        (
            {"a": torch.ones(1, 2), "b": torch.ones(1, 2)},
            {"a": 2.0, "b": -1.0},
            "weight of 'b' must be finite and >= 0, got -1.0",
        ),
        ({"a": torch.ones(1, 2)}, {"a": math.inf}, "weight of 'a' must be finite and >= 0, got inf"),
        ({"a": torch.ones(2)}, {"a": 1.0}, r"must share one shape \[P, G\], got {'a': \[2\]}"),
        ({"a": torch.ones(2, 3), "b": torch.ones(2, 1)}, {"a": 1.0, "b": 1.0}, r"must share one shape \[P, G\]"),
        ({"a": torch.tensor([[0.0], [-math.inf]])}, {"a": 1.0}, "part 'a' must be finite or NaN .* prompt 1"),
    ],
)
def test_refuses_parts(parts, weights, message):
    with pytest.raises(ValueError, match=message):
        combine_rewards(parts, weights)


def test_a_failed_sample_is_left_out_or_pays_a_penalty():
    # The failed samples' own rewards are not read, whatever they are.
    total = torch.tensor([[1.0, 3.0, -math.inf], [2.0, math.nan, 4.0]])
    is_failed = torch.tensor([[False, False, True], [False, False, True]])
    excluded = apply_failure_rule(total, is_failed, rule="exclude")
    want = torch.tensor([[1.0, 3.0, math.nan], [2.0, math.nan, math.nan]], dtype=F64)
    torch.testing.assert_close(excluded, want, atol=0, rtol=0, equal_nan=True)
    punished = apply_failure_rule(total, is_failed, rule="penalty", penalty=-5.0)
    want = torch.tensor([[1.0, 3.0, -5.0], [2.0, math.nan, -5.0]], dtype=F64)
    torch.testing.assert_close(punished, want, atol=0, rtol=0, equal_nan=True)
    # Excluded: r = 1, 3 around 2. Punished: r = 1, 3, -5 around -1/3.
    assert compute_advantages(excluded[:1], method="mean_only").values.tolist() == [[-1.0, 1.0, 0.0]]
    got = compute_advantages(punished[:1], method="mean_only").values
    torch.testing.assert_close(got, torch.tensor([[4.0, 10.0, -14.0]], dtype=F64) / 3, atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("total", "is_failed", "options", "message"),
    [
        (torch.ones(2), torch.ones(2, dtype=torch.bool), {}, r"total must have shape \[P, G\], got \[2\]"),
        (torch.ones(1, 2), torch.ones(1, 2), {}, r"is_failed must be bool \[1, 2\], got torch.float32"),
        (torch.ones(1, 2), torch.ones(1, 1, dtype=torch.bool), {}, r"is_failed must be bool \[1, 2\], got torch.bool \[1, 1\]"),
        (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), {"rule": "drop"}, "'exclude' or 'penalty', got 'drop'"),
        (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), {"penalty": -math.inf}, "penalty must be finite, got -inf"),
        (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), {"penalty": math.nan}, "penalty must be finite, got nan"),
        (
            torch.ones(1, 2),
            torch.ones(1, 2, dtype=torch.bool),
            {"rule": "exclude", "penalty": -1.0},
            "penalty must be 0 for rule 'exclude', got -1.0",
        ),
        (torch.tensor([[0.0, -math.inf]]), torch.tensor([[True, False]]), {}, "total must be finite or NaN .* prompt 0"),
    ],
)
def test_failure_rule_refuses(total, is_failed, options, message):
    with pytest.raises(ValueError, match=message):
        apply_failure_rule(total, is_failed, **({"rule": "penalty"} | options))


def test_kl_is_summed_over_valid_decisions_and_charged():
    total = torch.tensor([[1.0, math.nan, 2.0]])
    kl = torch.tensor([[[0.5, 0.25, math.nan], [1.0, 1.0, 1.0], [math.inf, math.nan, math.nan]]], requires_grad=True)
    is_valid = torch.tensor([[[True, True, False], [True, True, True], [False, False, False]]])
    # 1 - 2 * (0.5 + 0.25) = -0.5;  not scored stays so;  no decision, no charge
    got = subtract_kl(Rewards({}, total), kl, is_valid, weight=2.0)
    torch.testing.assert_close(got.total, torch.tensor([[-0.5, math.nan, 2.0]], dtype=F64), atol=0, rtol=0, equal_nan=True)
    assert got.kl_penalty is not None
    assert got.kl_penalty.tolist() == [[1.5, 6.0, 0.0]]
    assert [tensor.requires_grad for tensor in (got.total, got.kl_penalty)] == [False, False]
    free = subtract_kl(Rewards({}, total), kl, is_valid, weight=0.0)
    torch.testing.assert_close(free.total, total.double(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("total", "kl", "is_valid", "weight", "message"),
    [
        (torch.ones(2), torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), 1.0, r"total must have shape \[P, G\]"),
        (torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), 1.0, r"must have shape \[P, G, L\]"),
        (torch.ones(1, 2), torch.ones(1, 2, 3), torch.ones(1, 2, 1, dtype=torch.bool), 1.0, r"got \[1, 2, 3\] and torch.bool"),
        (torch.ones(1, 2), torch.ones(1, 2, 3), torch.ones(1, 2, 3), 1.0, "torch.float32"),
        (torch.ones(1, 2), torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool), -0.1, "KL weight must be .* got -0.1"),
        (torch.ones(1, 2), torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool), math.inf, "KL weight must be .* got inf"),
        (torch.full((1, 2), math.inf), torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool), 1.0, "infinite one"),
        (
            torch.ones(1, 1),
            torch.tensor([[[0.0, -math.inf]]]),
            torch.ones(1, 1, 2, dtype=torch.bool),
            1.0,
            r"finite where valid, got -inf at \[0, 0, 1\]",
        ),
    ],
)
def test_kl_charge_refuses(total, kl, is_valid, weight, message):
    with pytest.raises(ValueError, match=message):
        subtract_kl(Rewards({}, total), kl, is_valid, weight=weight)
