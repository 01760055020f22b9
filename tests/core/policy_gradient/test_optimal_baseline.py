import math

import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.optimal_baseline import optimal_baseline_advantages

F64 = torch.float64


def test_agrees_with_a_naive_loop_over_scored_samples():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(5, 4, dtype=F64, generator=generator)
    lengths = torch.randint(0, 9, (5, 4), generator=generator)
    rewards[1, 2], rewards[2, 1:], rewards[3], rewards[4] = math.nan, math.nan, 0.25, math.nan
    found = optimal_baseline_advantages(rewards.requires_grad_(), lengths)
    for p, group in enumerate(rewards.tolist()):
        scored = [(r, n) for r, n in zip(group, lengths[p].tolist(), strict=True) if not math.isnan(r)]
        whole = sum(n for _, n in scored)
        is_silent = len({r for r, _ in scored}) < 2 or whole == 0
        baseline = 0.0 if is_silent else sum(r * n for r, n in scored) / whole
        wanted = [0.0 if is_silent or math.isnan(r) else r - baseline for r in group]
        assert found.values[p].tolist() == pytest.approx(wanted, abs=1e-12)
    assert found.is_tied.tolist() == [False, False, True, True, False]
    assert (found.values.dtype, found.values.requires_grad) == (F64, False)


def test_of_equal_lengths_it_is_the_mean_and_of_unequal_ones_the_long_samples_own():
    rewards = torch.tensor([[0.0, 1.0, 5.0]])
    alike = optimal_baseline_advantages(rewards, torch.full((1, 3), 7))
    torch.testing.assert_close(alike.values, compute_advantages(rewards, method="mean_only").values)
    # (1 * 0 + 2 * 1 + 7 * 5) / 10 = 3.7
    unlike = optimal_baseline_advantages(rewards, torch.tensor([[1, 2, 7]]))
    torch.testing.assert_close(unlike.values, torch.tensor([[-3.7, -2.7, 1.3]], dtype=F64))


def test_it_has_the_least_variance_where_a_gradient_grows_with_the_length():
    """Gradients of n independent decisions: the variance of (r - b) times their sum is E[n (r - b)^2], least at E[nr]/E[n]."""
    rewards, lengths = torch.tensor([[0.0, 1.0, 1.0, 3.0]], dtype=F64), torch.tensor([[2, 8, 4, 6]])
    found = optimal_baseline_advantages(rewards, lengths).values
    baseline = float((rewards - found)[0, 0])

    def variance(b):
        return float((lengths * (rewards - b).square()).mean())

    assert variance(baseline) < min(variance(baseline - 0.01), variance(baseline + 0.01), variance(float(rewards.mean())))


test_refuses = refuses(
    (lambda: optimal_baseline_advantages(torch.ones(2, 3), torch.ones(2, 2)), r"lengths must have shape \[2, 3\], got \[2, 2\]"),
    (lambda: optimal_baseline_advantages(torch.ones(2, 1), torch.ones(2, 1)), "group size must be at least 2"),
)
