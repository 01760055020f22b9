import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_pipeline.core.policy_gradient.returns import discounted_returns, generalized_advantages

F64 = torch.float64


def test_golden_returns():
    rewards = torch.tensor([1.0, 2.0, 4.0], dtype=F64)
    # 4;  2 + 0.5 * 4 = 4;  1 + 0.5 * 4 = 3
    assert discounted_returns(rewards, gamma=0.5).tolist() == [3.0, 4.0, 4.0]
    # With a bootstrap of 8:  4 + 4 = 8;  2 + 4 = 6;  1 + 3 = 4
    assert discounted_returns(rewards, gamma=0.5, bootstrap=torch.tensor(8.0, dtype=F64)).tolist() == [4.0, 6.0, 8.0]
    # An end after the second step cuts the sum: 4;  2;  1 + 0.5 * 2 = 2
    assert discounted_returns(rewards, gamma=0.5, dones=torch.tensor([False, True, False])).tolist() == [2.0, 2.0, 4.0]


def test_golden_gae():
    rewards, values = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor([0.5, 1.0, 2.0], dtype=F64)
    # gamma 0.5, lambda 0.5: d1 = 2 + 0.5 * 2 - 1 = 2;  d0 = 1 + 0.5 * 1 - 0.5 = 1;  A1 = 2;  A0 = 1 + 0.25 * 2 = 1.5
    advantages, returns = generalized_advantages(rewards, values, gamma=0.5, gae_lambda=0.5)
    assert advantages.tolist() == [1.5, 2.0]
    assert returns.tolist() == [2.0, 3.0]


def naive_gae(rewards, values, dones, gamma, lam):
    """Sum (gamma * lambda)^i * d_{t+i} up to the end of the episode, one step at a time."""
    result = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for i in range(t, len(rewards)):
            total += factor * (rewards[i] + gamma * values[i + 1] * (not dones[i]) - values[i])
            if dones[i]:
                break
            factor *= gamma * lam
        result.append(total)
    return result


def test_gae_agrees_with_a_naive_double_loop():
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randn(3, 7, dtype=F64, generator=generator)
    values = torch.randn(3, 8, dtype=F64, generator=generator)
    dones = torch.rand(3, 7, generator=generator) < 0.3
    got, _ = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.8, dones=dones)
    want = [naive_gae(r, v, d, 0.9, 0.8) for r, v, d in zip(rewards.tolist(), values.tolist(), dones.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=F64), atol=1e-12, rtol=0)


def test_lambda_one_is_return_minus_value():
    generator = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(4, 5, dtype=F64, generator=generator), torch.randn(4, 6, dtype=F64, generator=generator)
    advantages, targets = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=1.0)
    returns = discounted_returns(rewards, gamma=0.9, bootstrap=values[:, -1])
    torch.testing.assert_close(advantages, returns - values[:, :-1], atol=1e-12, rtol=0)
    torch.testing.assert_close(targets, returns, atol=1e-12, rtol=0)


def naive_masked_gae(rewards, values, dones, is_valid, gamma, lam):
    """Cut the invalid steps out, run the loop on what is left, and put zeros back."""
    kept = [t for t, valid in enumerate(is_valid) if valid]
    bootstrap = values[-1] if is_valid[-1] else 0.0
    short = naive_gae([rewards[t] for t in kept], [values[t] for t in kept] + [bootstrap], [dones[t] for t in kept], gamma, lam)
    by_step = dict(zip(kept, short, strict=True))
    return [by_step.get(t, 0.0) for t in range(len(rewards))]


def naive_returns(rewards, dones, gamma, bootstrap):
    result, running = [], bootstrap
    for reward, done in zip(reversed(rewards), reversed(dones), strict=True):
        running = reward + gamma * (not done) * running
        result.append(running)
    return result[::-1]


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 16, 17, 31, 63, 65, 128, 1000])
@pytest.mark.parametrize("with_dones", [False, True])
def test_every_length_agrees_with_a_naive_loop(steps, with_dones):
    generator = torch.Generator().manual_seed(steps)
    rewards = torch.randn(2, 3, steps, dtype=F64, generator=generator)
    bootstrap = torch.randn(2, 3, dtype=F64, generator=generator)
    dones = torch.rand(2, 3, steps, generator=generator) < (0.05 if with_dones else 0.0)
    got = discounted_returns(rewards, gamma=0.99, dones=dones if with_dones else None, bootstrap=bootstrap)
    rows = zip(rewards.flatten(0, 1).tolist(), dones.flatten(0, 1).tolist(), bootstrap.flatten().tolist(), strict=True)
    want = torch.tensor([naive_returns(r, d, 0.99, b) for r, d, b in rows], dtype=F64).view(2, 3, steps)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-14)


def test_nothing_crosses_a_done():
    rewards = torch.randn(2, 40, dtype=F64, generator=torch.Generator().manual_seed(4))
    values = torch.zeros(2, 41, dtype=F64)
    dones = torch.zeros(2, 40, dtype=torch.bool)
    dones[:, 20] = True
    before, _ = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.8, dones=dones)
    rewards[:, 21:] = 1e300
    values[:, 21:] = -1e300
    after, _ = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.8, dones=dones)
    assert torch.equal(before[:, :21], after[:, :21])
    assert torch.equal(before[:, 20], rewards[:, 20])


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 40), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_masked_gae_agrees_with_cutting_the_invalid_steps_out(seed, steps, gamma, lam):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, steps, dtype=F64, generator=generator)
    values = torch.randn(4, steps + 1, dtype=F64, generator=generator)
    dones = torch.rand(4, steps, generator=generator) < 0.15
    is_valid = torch.rand(4, steps, generator=generator) < 0.6
    got, targets = generalized_advantages(rewards, values, gamma=gamma, gae_lambda=lam, dones=dones, is_valid=is_valid)
    rows = zip(rewards.tolist(), values.tolist(), dones.tolist(), is_valid.tolist(), strict=True)
    want = torch.tensor([naive_masked_gae(r, v, d, m, gamma, lam) for r, v, d, m in rows], dtype=F64)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    torch.testing.assert_close(targets, (want + values[:, :-1]).masked_fill(~is_valid, 0.0), atol=1e-12, rtol=0)


def test_golden_padding_and_bootstrap():
    rewards, values = torch.tensor([1.0, 2.0, 9.0], dtype=F64), torch.tensor([0.5, 1.0, 9.0, 4.0], dtype=F64)
    padded = torch.tensor([True, True, False])
    # Padding ends the row, its bootstrap is 0: A1 = 2 - 1 = 1;  d0 = 1 + 0.5 * 1 - 0.5 = 1;  A0 = 1 + 0.25 * 1 = 1.25
    got, targets = generalized_advantages(rewards, values, gamma=0.5, gae_lambda=0.5, is_valid=padded)
    assert got.tolist() == [1.25, 1.0, 0.0]
    assert targets.tolist() == [1.75, 2.0, 0.0]
    # A hole is cut out: step 0 is followed by step 2, which is followed by the bootstrap 4.
    # A2 = 9 + 0.5 * 4 - 9 = 2;  d0 = 1 + 0.5 * 9 - 0.5 = 5;  A0 = 5 + 0.25 * 2 = 5.5
    hole = torch.tensor([True, False, True])
    assert generalized_advantages(rewards, values, gamma=0.5, gae_lambda=0.5, is_valid=hole)[0].tolist() == [5.5, 0.0, 2.0]


def test_padding_is_never_read():
    rewards = torch.tensor([[1.0, 2.0, math.nan], [math.inf, math.nan, math.nan]], requires_grad=True)
    values = torch.tensor([[0.5, 1.0, -math.inf, math.nan], [math.nan, math.nan, math.nan, math.nan]])
    is_valid = torch.tensor([[True, True, False], [False, False, False]])
    got, targets = generalized_advantages(rewards, values, gamma=0.5, gae_lambda=0.5, is_valid=is_valid)
    assert got.tolist() == [[1.25, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert targets.tolist() == [[1.75, 2.0, 0.0], [0.0, 0.0, 0.0]]
    got.sum().backward()
    # A1 holds r1, A0 holds r0 + 0.25 * r1.
    assert rewards.grad.tolist() == [[1.0, 1.25, 0.0], [0.0, 0.0, 0.0]]


def test_value_baseline_over_decisions():
    # Three samples of 2, 4 and 3 decisions; the reward is known at the last one.
    is_valid = torch.tensor([[[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]], dtype=torch.bool)
    reward = torch.tensor([[2.0, -1.0, 0.5]], dtype=F64)
    values = torch.randn(1, 3, 5, dtype=F64, generator=torch.Generator().manual_seed(5))
    values[..., -1] = 0.0
    is_last = is_valid & (is_valid.cumsum(dim=-1) == is_valid.sum(dim=-1, keepdim=True))
    rewards = torch.where(is_last, reward[..., None], 0.0)
    got, targets = generalized_advantages(rewards, values, gamma=1.0, gae_lambda=1.0, is_valid=is_valid)
    want = (reward[..., None] - values[..., :-1]).masked_fill(~is_valid, 0.0)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    torch.testing.assert_close(targets, (reward[..., None] * is_valid).to(F64), atol=1e-12, rtol=0)
    # One-step TD: the reward reaches only the decision that earned it, the others see the change of the value.
    one_step, _ = generalized_advantages(rewards, values, gamma=1.0, gae_lambda=0.0, is_valid=is_valid)
    v = values[0, 0]
    torch.testing.assert_close(one_step[0, 0], torch.stack([v[1] - v[0], 2.0 - v[1], v[0] * 0, v[0] * 0]), atol=1e-12, rtol=0)


def test_gradient_of_the_rewards_is_the_discount_and_values_get_none():
    rewards = torch.zeros(20, dtype=F64, requires_grad=True)
    values = torch.zeros(21, dtype=F64, requires_grad=True)
    advantages, _ = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.8)
    advantages[0].backward()
    torch.testing.assert_close(rewards.grad, 0.72 ** torch.arange(20, dtype=F64), atol=1e-12, rtol=0)
    assert values.grad is None


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(6)
    rewards = torch.randn(2, 11, dtype=F64, generator=generator, requires_grad=True)
    bootstrap = torch.randn(2, dtype=F64, generator=generator, requires_grad=True)
    dones = torch.rand(2, 11, generator=generator) < 0.2
    assert torch.autograd.gradcheck(lambda r, b: discounted_returns(r, gamma=0.9, dones=dones, bootstrap=b), (rewards, bootstrap))


class CountedOperations(TorchDispatchMode):
    """Counts calls into torch and the elements they write."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls += 1
        self.elements += result.numel() if torch.is_tensor(result) else 0
        return result


def count(steps):
    rewards, values, dones = torch.zeros(4, steps), torch.zeros(4, steps + 1), torch.zeros(4, steps, dtype=torch.bool)
    with CountedOperations() as counted:
        generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.9, dones=dones, is_valid=~dones)
    return counted


def test_work_is_linear_in_time_and_calls_are_logarithmic():
    small, large = count(512), count(4096)
    assert large.elements < 8.1 * small.elements
    # Three halvings more, in each of the two recurrences; a loop over time would add 3584 calls.
    assert large.calls - small.calls < 150


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        (torch.ones(3), {"values": torch.ones(3)}, r"values must have shape \[4\], T \+ 1 steps, got \[3\]"),
        (torch.ones(2, 3), {"values": torch.ones(4)}, r"values must have shape \[2, 4\], T \+ 1 steps, got \[4\]"),
        (torch.ones(2, 0), {"values": torch.ones(2, 1)}, r"T >= 1, got torch.float32 \[2, 0\]"),
        (torch.ones(()), {"values": torch.ones(1)}, r"rewards must be floating point \[..., T\]"),
        (torch.ones(3, dtype=torch.int64), {}, "rewards must be floating point .* got torch.int64"),
        (torch.ones(3), {"gamma": 1.01}, r"gamma must be within \[0, 1\], got 1.01"),
        (torch.ones(3), {"gae_lambda": -0.1}, r"gae_lambda must be within \[0, 1\], got -0.1"),
        (torch.ones(3), {"gamma": math.nan}, r"gamma must be within \[0, 1\], got nan"),
        (torch.ones(3), {"dones": torch.zeros(3)}, r"dones must be bool \[3\], got torch.float32 \[3\]"),
        (torch.ones(3), {"is_valid": torch.ones(2, dtype=torch.bool)}, r"is_valid must be bool \[3\], got torch.bool \[2\]"),
        (torch.tensor([0.0, math.nan, 0.0]), {}, "rewards must be finite, got nan"),
        (torch.tensor([0.0, math.inf, -math.inf]), {}, "rewards must be finite, got inf"),
        (torch.ones(3), {"values": torch.tensor([0.0, math.inf, 0.0, 0.0])}, "values must be finite, got inf"),
        (torch.ones(3), {"values": torch.tensor([0.0, 0.0, 0.0, math.nan])}, "values after a step must be finite, got nan"),
    ],
)
def test_gae_refuses(rewards, options, message):
    arguments = {"values": torch.ones(4), "gamma": 0.5, "gae_lambda": 0.5} | options
    with pytest.raises(ValueError, match=message):
        generalized_advantages(rewards, arguments.pop("values"), **arguments)


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        (torch.ones(2, 3), {"bootstrap": torch.ones(3)}, r"bootstrap must have shape \[2\], got \[3\]"),
        (torch.ones(2, 3), {"bootstrap": torch.tensor([0.0, math.inf])}, "bootstrap must be finite, got inf"),
        (torch.ones(2, 3), {"dones": torch.ones(2, 1, dtype=torch.bool)}, r"dones must be bool \[2, 3\]"),
        (torch.tensor([math.nan]), {}, "rewards must be finite, got nan"),
        (torch.ones(2, 3), {"gamma": -1.0}, r"gamma must be within \[0, 1\], got -1.0"),
    ],
)
def test_returns_refuse(rewards, options, message):
    with pytest.raises(ValueError, match=message):
        discounted_returns(rewards, **({"gamma": 0.5} | options))


def test_large_finite_entries_are_not_mistaken_for_infinite_ones():
    rewards = torch.full((8,), 3e38)
    assert discounted_returns(rewards, gamma=0.0).tolist() == rewards.tolist()
