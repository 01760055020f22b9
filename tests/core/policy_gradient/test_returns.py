import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_pipeline.core.policy_gradient.returns import discounted_returns, generalized_advantages

F64 = torch.float64


def naive_gae(rewards, values, dones, is_valid, gamma, lam):
    """Cut the invalid steps out; sum (gamma * lambda)^i * d_{t+i} up to the end of the episode, one step at a time."""
    kept, result = [t for t, valid in enumerate(is_valid) if valid], [0.0] * len(rewards)
    after = [values[t] for t in kept[1:]] + [values[-1] if is_valid[-1] else 0.0]
    for i, start in enumerate(kept):
        factor = 1.0
        for t, following in zip(kept[i:], after[i:], strict=True):
            result[start] += factor * (rewards[t] + gamma * following * (not dones[t]) - values[t])
            factor *= gamma * lam * (not dones[t])
    return result


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


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 40), gamma=st.floats(0, 1), lam=st.floats(0, 1), is_masked=st.booleans())
def test_gae_agrees_with_cutting_the_invalid_steps_out(seed, steps, gamma, lam, is_masked):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, steps, dtype=F64, generator=generator)
    values = torch.randn(4, steps + 1, dtype=F64, generator=generator)
    dones = torch.rand(4, steps, generator=generator) < 0.15
    is_valid = torch.rand(4, steps, generator=generator) < (0.6 if is_masked else 1.1)
    # Padding is never read, nor the bootstrap of a row that ends with it.
    rewards = rewards.masked_fill(~is_valid, math.nan).requires_grad_()
    values = values.masked_fill(~torch.cat([is_valid, is_valid[:, -1:]], dim=1), math.inf).requires_grad_()
    names = {"gamma": gamma, "gae_lambda": lam, "dones": dones, "is_valid": is_valid if is_masked else None}
    got, targets = generalized_advantages(rewards, values, **names)
    rows = zip(rewards.tolist(), values.tolist(), dones.tolist(), is_valid.tolist(), strict=True)
    want = torch.tensor([naive_gae(r, v, d, m, gamma, lam) for r, v, d, m in rows], dtype=F64)
    torch.testing.assert_close(got.detach(), want, atol=1e-12, rtol=0)
    torch.testing.assert_close(targets.detach(), (want + values[:, :-1]).masked_fill(~is_valid, 0.0).detach(), atol=1e-12, rtol=0)
    # The last valid step of a row holds its own reward alone, with slope 1; padding has none, values never.
    (slope,) = torch.autograd.grad(got.sum(), rewards)
    assert values.grad is None
    assert not slope[~is_valid].any()
    assert bool((slope[is_valid] >= 1.0).all())


def test_gradient_of_the_rewards_is_the_discount_and_values_get_none():
    rewards, values = torch.zeros(20, dtype=F64, requires_grad=True), torch.zeros(21, dtype=F64, requires_grad=True)
    generalized_advantages(rewards, values, gamma=0.9, gae_lambda=0.8)[0][0].backward()
    torch.testing.assert_close(rewards.grad, 0.72 ** torch.arange(20, dtype=F64), atol=1e-12, rtol=0)
    assert values.grad is None


class CountedOperations(TorchDispatchMode):
    """Counts calls into torch and the elements they write."""

    calls = elements = 0

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


def gae(rewards=None, values=None, **options):
    rewards, values = THREE if rewards is None else rewards, torch.ones(4) if values is None else values
    return generalized_advantages(rewards, values, **({"gamma": 0.5, "gae_lambda": 0.5} | options))


THREE = torch.ones(3)
ROWS = torch.ones(2, 3)


test_refuses = refuses(
    (lambda: gae(THREE, THREE), r"values must have shape \[4\], got \[3\]; there are T \+ 1"),
    (lambda: gae(torch.ones(2, 0), torch.ones(2, 1)), r"T >= 1, got torch.float32 \[2, 0\]"),
    (lambda: gae(THREE.long()), "rewards must be floating point .* got torch.int64"),
    (lambda: gae(gamma=1.01), r"gamma must be within \[0, 1\], got 1.01"),
    (lambda: gae(gae_lambda=-0.1), r"gae_lambda must be within \[0, 1\], got -0.1"),
    (lambda: gae(dones=THREE), r"dones must be bool \[3\], got torch.float32 \[3\]"),
    (lambda: gae(is_valid=THREE[:2] > 0), r"is_valid must be bool \[3\], got torch.bool \[2\]"),
    (lambda: gae(torch.tensor([0.0, math.nan, 0.0])), "rewards must be finite, got nan"),
    (lambda: gae(torch.tensor([0.0, math.inf, -math.inf])), "rewards must be finite, got inf"),
    (lambda: gae(THREE, torch.tensor([0.0, math.inf, 0.0, 0.0])), "values must be finite, got inf"),
    (lambda: gae(THREE, torch.tensor([0.0, 0.0, 0.0, math.nan])), "values after a step must be finite, got nan"),
    (lambda: discounted_returns(ROWS, gamma=0.5, bootstrap=THREE), r"bootstrap must have shape \[2\], got \[3\]"),
    (lambda: discounted_returns(ROWS, gamma=0.5, bootstrap=THREE[:2] / 0), "bootstrap must be finite, got inf"),
    (lambda: discounted_returns(ROWS, gamma=0.5, dones=ROWS[:, :1] > 0), r"dones must be bool \[2, 3\]"),
)
