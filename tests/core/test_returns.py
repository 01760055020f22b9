import pytest
import torch

from grpo_pipeline.core.returns import discounted_returns, generalized_advantages

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
    rewards, values = torch.randn(4, 5, dtype=F64), torch.randn(4, 6, dtype=F64)
    advantages, targets = generalized_advantages(rewards, values, gamma=0.9, gae_lambda=1.0)
    returns = discounted_returns(rewards, gamma=0.9, bootstrap=values[:, -1])
    torch.testing.assert_close(advantages, returns - values[:, :-1], atol=1e-12, rtol=0)
    torch.testing.assert_close(targets, returns, atol=1e-12, rtol=0)


def test_refuses_values_without_a_bootstrap_entry():
    with pytest.raises(ValueError, match="T \\+ 1 = 4 steps, got 3"):
        generalized_advantages(torch.ones(3), torch.ones(3), gamma=1.0, gae_lambda=1.0)
