import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.core.advantages import METHODS, apply_prompt_weights, compute_advantages

F64 = torch.float64


def naive(rewards, *, method, std, eps, values=None):
    """The same, with Python floats, one sample at a time; no NaN, no ties."""
    flat = [r for group in rewards for r in group]

    def deviation(xs):
        mean = sum(xs) / len(xs)
        return math.sqrt(sum((x - mean) ** 2 for x in xs) / (len(xs) - (std == "sample")))

    result = []
    for p, group in enumerate(rewards):
        mean = sum(group) / len(group) if values is None else values[p]
        scale = {"group": deviation(group) + eps, "batch": deviation(flat) + eps}.get(method, 1.0)
        if method == "leave_one_out":
            result.append([r - (sum(group) - r) / (len(group) - 1) for r in group])
        else:
            result.append([(r - mean) / scale for r in group])
    return torch.tensor(result, dtype=F64)


@pytest.mark.parametrize(
    ("method", "std", "with_values"),
    [case for case in product(METHODS, ["sample", "population"], [False, True]) if case[::2] != ("leave_one_out", True)],
)
def test_agrees_with_a_naive_loop(method, std, with_values):
    rewards = torch.randn(5, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    values = torch.randn(5, dtype=F64, generator=torch.Generator().manual_seed(1)) if with_values else None
    got = compute_advantages(rewards, method=method, std=std, eps=1e-4, values=values).values
    want = naive(rewards.tolist(), method=method, std=std, eps=1e-4, values=None if values is None else values.tolist())
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


def test_golden_group():
    # r = 1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3; squares 4 + 1 + 0 + 9 = 14.
    rewards = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    sample = compute_advantages(rewards, std="sample", eps=0.0).values
    population = compute_advantages(rewards, std="population", eps=0.0).values
    deviations = torch.tensor([[-2.0, -1.0, 0.0, 3.0]], dtype=F64)
    torch.testing.assert_close(sample, deviations / math.sqrt(14 / 3), atol=1e-15, rtol=0)
    torch.testing.assert_close(population, deviations / math.sqrt(14 / 4), atol=1e-15, rtol=0)


def test_golden_leave_one_out():
    # r = 1, 2, 6: the others' means are 4, 3.5, 1.5; A = -3, -1.5, 4.5
    got = compute_advantages(torch.tensor([[1.0, 2.0, 6.0]]), method="leave_one_out").values
    torch.testing.assert_close(got, torch.tensor([[-3.0, -1.5, 4.5]], dtype=F64), atol=1e-15, rtol=0)


@pytest.mark.parametrize("group_size", [6, 8, 16])
@pytest.mark.parametrize("method", METHODS)
def test_constant_float32_groups_are_exactly_zero_and_counted(group_size, method):
    constants = torch.rand(500, 1, generator=torch.Generator().manual_seed(2)) * 2 - 1
    rewards = constants.expand(500, group_size).contiguous()
    # The trap is real: in float32 such a group is often 1 ulp off its mean.
    assert bool((rewards - rewards.mean(dim=1, keepdim=True) != 0).any())
    got = compute_advantages(rewards, method=method, eps=1e-9)
    assert torch.count_nonzero(got.values) == 0
    assert bool(got.is_tied.all())


def test_a_group_within_rounding_of_its_dtype_ties_and_a_real_difference_does_not():
    one = torch.tensor(1.0)
    next_up = torch.nextafter(one, torch.tensor(2.0))
    rewards = torch.stack([torch.stack([one, next_up]), torch.tensor([1.0, 1.0 + 1e-5])])
    got = compute_advantages(rewards)
    assert got.is_tied.tolist() == [True, False]
    assert torch.count_nonzero(got.values[0]) == 0
    assert float(got.values[1, 1]) > 0
    # The same distance is meant in float64, and rewards of a small scale are not swallowed.
    assert not bool(compute_advantages(rewards[:1].double()).is_tied.any())
    assert not bool(compute_advantages(torch.tensor([[1e-6, 2e-6]])).is_tied.any())


def test_unscored_samples_leave_the_statistics():
    nan = math.nan
    rewards = torch.tensor([[1.0, nan, 3.0, 8.0], [nan, nan, nan, nan], [nan, 5.0, nan, nan]], dtype=F64)
    for method in METHODS:
        got = compute_advantages(rewards, method=method)
        if method != "batch":
            alone = compute_advantages(torch.tensor([[1.0, 3.0, 8.0]], dtype=F64), method=method).values
            torch.testing.assert_close(got.values[:1, [0, 2, 3]], alone, atol=1e-14, rtol=0)
        assert float(got.values[0, 1]) == 0.0
        assert torch.count_nonzero(got.values[1:]) == 0
        # Nothing scored is not a tie; one scored sample has nothing to be compared with.
        assert got.is_tied.tolist() == [False, False, True]


def test_batch_std_covers_scored_samples_of_all_groups():
    rewards = torch.tensor([[0.0, 2.0], [10.0, math.nan]], dtype=F64)
    # Scored: 0, 2, 10; mean 4; squares 16 + 4 + 36 = 56; sample std sqrt(28).
    got = compute_advantages(rewards, method="batch", eps=0.0).values
    torch.testing.assert_close(got, torch.tensor([[-1.0, 1.0], [0.0, 0.0]], dtype=F64) / math.sqrt(28), atol=1e-15, rtol=0)


def test_values_replace_the_group_mean_so_that_a_tie_still_teaches():
    rewards, values = torch.tensor([[1.0, 1.0]]), torch.tensor([0.25])
    got = compute_advantages(rewards, method="mean_only", values=values)
    assert got.values.tolist() == [[0.75, 0.75]]
    assert got.is_tied.tolist() == [True]
    assert compute_advantages(rewards, method="group", values=values).values.tolist() == [[0.0, 0.0]]
    assert compute_advantages(torch.tensor([[1.0]]), method="mean_only", values=values).values.tolist() == [[0.75]]


@given(seed=st.integers(0, 2**31), scale=st.floats(1e-2, 1e2), shift=st.floats(-1e2, 1e2))
def test_affine_change_of_the_rewards_changes_nothing(seed, scale, shift):
    rewards = torch.randn(3, 5, dtype=F64, generator=torch.Generator().manual_seed(seed))
    for method in ("group", "batch"):
        before = compute_advantages(rewards, method=method, eps=0.0).values
        after = compute_advantages(rewards * scale + shift, method=method, eps=0.0).values
        torch.testing.assert_close(before, after, atol=1e-9, rtol=0)


@given(seed=st.integers(0, 2**31), method=st.sampled_from(METHODS))
def test_permuting_the_samples_of_a_group_permutes_the_advantages(seed, method):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, 6, dtype=F64, generator=generator)
    order = torch.randperm(6, generator=generator)
    permuted = compute_advantages(rewards[:, order], method=method).values
    torch.testing.assert_close(permuted, compute_advantages(rewards, method=method).values[:, order], atol=1e-12, rtol=0)


def test_advantages_are_detached_float64():
    rewards = torch.randn(2, 3, requires_grad=True)
    got = compute_advantages(rewards, method="mean_only", values=torch.zeros(2, requires_grad=True)).values
    assert got.dtype == F64
    assert not got.requires_grad


def test_a_prompt_weight_survives_normalisation_where_a_factor_on_the_reward_cancels():
    rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    plain = compute_advantages(rewards, eps=0.0)
    factor_on_reward = compute_advantages(rewards * torch.tensor([[1.0], [3.0]]), eps=0.0)
    torch.testing.assert_close(factor_on_reward.values, plain.values, atol=1e-12, rtol=0)
    weighted = apply_prompt_weights(plain, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(weighted.values, plain.values * torch.tensor([[1.0], [3.0]]), atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        (torch.ones(3), {}, r"shape \[P, G\], got \[3\]"),
        (torch.ones(3, 1), {"method": "group"}, "group size must be at least 2 for group advantages, got 1"),
        (torch.ones(3, 1), {"method": "leave_one_out"}, "group size must be at least 2"),
        (torch.ones(3, 1), {"method": "mean_only"}, "group size must be at least 2"),
        (torch.ones(3, 1), {"method": "group", "values": torch.ones(3)}, "group size must be at least 2"),
        (torch.tensor([[0.0, 1.0], [0.0, -math.inf]]), {}, "infinite one for prompt 1"),
        (torch.ones(2, 2), {"method": "zscore"}, "must be one of .* got 'zscore'"),
        (torch.ones(2, 2), {"std": "unbiased"}, "got 'unbiased'"),
        (torch.ones(2, 2), {"values": torch.ones(3)}, r"values must have shape \[2\], got \[3\]"),
        (torch.ones(2, 2), {"method": "leave_one_out", "values": torch.ones(2)}, "values must be None for leave_one_out"),
    ],
)
def test_refuses(rewards, options, message):
    with pytest.raises(ValueError, match=message):
        compute_advantages(rewards, **options)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "shape"),
        (torch.tensor([1.0, -1.0]), "-1.0 for prompt 1"),
        (torch.tensor([math.nan, 1.0]), "nan for prompt 0"),
    ],
)
def test_refuses_prompt_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        apply_prompt_weights(compute_advantages(torch.tensor([[0.0, 1.0], [0.0, 1.0]])), weights)
