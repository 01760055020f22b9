import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.core.policy_gradient.advantages import (
    METHODS,
    apply_prompt_weights,
    compute_advantages,
    keep_top,
    per_reward_advantages,
    whiten,
)
from grpo_pipeline.core.types import Advantages

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


@pytest.mark.parametrize("method", METHODS)
def test_an_unscored_group_is_zero_even_without_eps(method):
    rewards = torch.tensor([[math.nan, math.nan], [math.nan, 4.0]], dtype=F64)
    assert compute_advantages(rewards, method=method, eps=0.0).values.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@given(seed=st.integers(0, 2**31), method=st.sampled_from(["group", "leave_one_out", "mean_only"]))
def test_unscored_samples_change_nothing_for_the_others_but_the_statistics(seed, method):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, 3, dtype=F64, generator=generator)
    order = torch.randperm(5, generator=generator)
    with_unscored = torch.cat([rewards, torch.full((4, 2), math.nan, dtype=F64)], dim=1)[:, order]
    got = compute_advantages(with_unscored, method=method).values
    want = torch.cat([compute_advantages(rewards, method=method).values, torch.zeros(4, 2, dtype=F64)], dim=1)[:, order]
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@given(seed=st.integers(0, 2**31), method=st.sampled_from(METHODS))
def test_advantages_of_a_group_sum_to_zero(seed, method):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(4, 6, dtype=F64, generator=generator)
    rewards[torch.rand(4, 6, generator=generator) < 0.3] = math.nan
    got = compute_advantages(rewards, method=method).values
    torch.testing.assert_close(got.sum(dim=1), torch.zeros(4, dtype=F64), atol=1e-12, rtol=0)


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
        (torch.ones(2, 2), {"eps": -1e-4}, "eps must be finite and >= 0, got -0.0001"),
        (torch.ones(2, 2), {"tie_tolerance": math.inf}, "tie_tolerance must be finite and >= 0, got inf"),
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


def naive_per_reward(parts, weights, *, std, eps, whitened):
    """The same with Python floats, one sample and one part at a time; None where a part did not score the sample."""

    def statistics(xs):
        mean = sum(xs) / len(xs)
        return mean, math.sqrt(sum((x - mean) ** 2 for x in xs) / (len(xs) - (std == "sample")))

    names = [name for name in parts if weights[name] > 0]
    prompts, size = len(parts[names[0]]), len(parts[names[0]][0])
    sums = {}
    for p in range(prompts):
        for name in names:
            group = parts[name][p]
            scored = [x for x in group if x is not None]
            if len(set(scored)) < 2:
                continue
            mean, deviation = statistics(scored)
            for g, x in enumerate(group):
                if x is not None:
                    sums[p, g] = sums.get((p, g), 0.0) + weights[name] * (x - mean) / (deviation + eps)
    if whitened and sums:
        mean, deviation = statistics(list(sums.values()))
        sums = {place: (x - mean) / (deviation + eps) for place, x in sums.items()}
    teaches = [[(p, g) in sums for g in range(size)] for p in range(prompts)]
    return torch.tensor([[sums.get((p, g), 0.0) for g in range(size)] for p in range(prompts)], dtype=F64), torch.tensor(teaches)


def as_floats(part):
    return [[None if math.isnan(x) else x for x in group] for group in part.tolist()]


def random_parts(seed, *, prompts=5, size=4):
    """Parts of few levels, so that some tie; some entries, and for "b" a whole group, are not scored."""
    generator = torch.Generator().manual_seed(seed)
    parts = {name: torch.randint(0, 3, (prompts, size), generator=generator).to(F64) for name in "abc"}
    for part in parts.values():
        part[torch.rand(prompts, size, generator=generator) < 0.25] = math.nan
    parts["b"][0] = math.nan
    return parts


@given(
    seed=st.integers(0, 2**31),
    std=st.sampled_from(["sample", "population"]),
    eps=st.sampled_from([1e-4, 0.1]),
    whitened=st.booleans(),
)
def test_per_reward_agrees_with_a_naive_loop(seed, std, eps, whitened):
    parts, weights = random_parts(seed), {"a": 1.0, "b": 0.25, "c": 0.0}
    got = per_reward_advantages(parts, weights, std=std, eps=eps, whiten=whitened).values
    as_lists = {name: as_floats(part) for name, part in parts.items()}
    want, teaches = naive_per_reward(as_lists, weights, std=std, eps=eps, whitened=whitened)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    assert torch.count_nonzero(got[~teaches]) == 0


def test_golden_per_reward():
    parts = {"a": torch.tensor([[0.0, 2.0]], dtype=F64), "b": torch.tensor([[30.0, 10.0]], dtype=F64)}
    # Population std 1 and 10: z_a = -1, 1;  z_b = 1, -1;  S = 3 z_a + z_b = -2, 2, of std 2: A = -1, 1.
    options = {"std": "population", "eps": 0.0}
    summed = per_reward_advantages(parts, {"a": 3.0, "b": 1.0}, whiten=False, **options).values
    torch.testing.assert_close(summed, torch.tensor([[-2.0, 2.0]], dtype=F64), atol=1e-14, rtol=0)
    whitened = per_reward_advantages(parts, {"a": 3.0, "b": 1.0}, **options).values
    torch.testing.assert_close(whitened, torch.tensor([[-1.0, 1.0]], dtype=F64), atol=1e-14, rtol=0)
    # eps enters twice: z_a = -+1 / 1.5, z_b = +-10 / 10.5;  S = -+(3 / 1.5 - 10 / 10.5) = -+s;  A = -+s / (s + 0.5)
    softened = per_reward_advantages(parts, {"a": 3.0, "b": 1.0}, std="population", eps=0.5).values
    s = 3 / 1.5 - 10 / 10.5
    torch.testing.assert_close(softened, torch.tensor([[-s, s]], dtype=F64) / (s + 0.5), atol=1e-14, rtol=0)


def test_per_reward_is_not_drowned_by_a_part_of_large_unit():
    # In the sum, "short" with its hundredfold unit decides alone, and the answer that is only correct looks bad.
    correct, short = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0]])
    summed = compute_advantages(correct + 100 * short).values
    decoupled = per_reward_advantages({"correct": correct, "short": short}, {"correct": 1.0, "short": 1.0}).values
    assert float(summed[0, 1]) < 0 < float(decoupled[0, 1])
    torch.testing.assert_close(decoupled[0, 1], decoupled[0, 2], atol=1e-12, rtol=0)


@pytest.mark.parametrize("group_size", [6, 8, 16])
@pytest.mark.parametrize("whitened", [False, True])
def test_constant_float32_parts_are_exactly_zero_and_whitening_does_not_move_them(group_size, whitened):
    tied = torch.full((3, group_size), 0.1)
    varied = torch.arange(3 * group_size, dtype=torch.float32).view(3, group_size)
    mixed = torch.cat([tied, varied])
    weights = {"a": 0.7, "b": 0.3}
    got = per_reward_advantages({"a": mixed, "b": mixed}, weights, eps=1e-9, whiten=whitened)
    assert got.is_tied.tolist() == [True] * 3 + [False] * 3
    assert torch.count_nonzero(got.values[:3]) == 0
    # The tied groups leave the statistics of the whitening: it sees the other three alone.
    alone = per_reward_advantages({"a": varied, "b": varied}, weights, eps=1e-9, whiten=whitened)
    torch.testing.assert_close(got.values[3:], alone.values, atol=1e-12, rtol=0)
    if whitened:
        assert float(got.values[3:].std()) == pytest.approx(1.0, abs=1e-7)
    # One part that ties adds exactly nothing.
    other = per_reward_advantages({"a": tied, "b": varied}, weights, eps=1e-9, whiten=whitened)
    only = per_reward_advantages({"b": varied}, {"b": 0.3}, eps=1e-9, whiten=whitened)
    assert not bool(other.is_tied.any())
    torch.testing.assert_close(other.values, only.values, atol=1e-8, rtol=0)


def test_rows_without_a_score_stay_zero_and_leave_the_whitening():
    nan = math.nan
    parts = {
        "a": torch.tensor([[0.0, 1.0, nan, nan], [nan, nan, nan, nan], [5.0, 5.0, nan, nan]], dtype=F64),
        "b": torch.tensor([[2.0, 4.0, 9.0, nan], [nan, nan, nan, nan], [nan, nan, nan, 1.0]], dtype=F64),
    }
    got = per_reward_advantages(parts, {"a": 1.0, "b": 1.0})
    assert float(got.values[0, 3]) == 0.0
    assert torch.count_nonzero(got.values[1:]) == 0
    # Every scored part of the last group ties; nothing scored is not a tie.
    assert got.is_tied.tolist() == [False, False, True]
    assert float(got.values[0, :3].std()) == pytest.approx(1.0, abs=1e-3)
    # A row that only a tied part scored is 0 although its group teaches.
    parts = {"a": torch.tensor([[0.0, 1.0, nan]], dtype=F64), "b": torch.tensor([[nan, nan, 3.0]], dtype=F64)}
    got = per_reward_advantages(parts, {"a": 1.0, "b": 1.0}, eps=0.0)
    torch.testing.assert_close(got.values, torch.tensor([[-1.0, 1.0, 0.0]], dtype=F64) / math.sqrt(2), atol=1e-14, rtol=0)
    assert float(got.values[0, 2]) == 0.0


def test_parts_that_cancel_give_zero_and_not_amplified_rounding():
    part = torch.rand(3, 7, dtype=F64, generator=torch.Generator().manual_seed(7))
    got = per_reward_advantages({"a": part, "b": -part}, {"a": 1e-3, "b": 1e-3}, eps=0.0)
    assert torch.count_nonzero(got.values) == 0


def test_a_part_of_weight_zero_is_left_out_with_its_missing_scores():
    parts = {"a": torch.tensor([[0.0, 1.0, 3.0]]), "b": torch.tensor([[math.nan, math.inf, 7.0]])}
    got = per_reward_advantages(parts, {"a": 2.0, "b": 0.0})
    alone = per_reward_advantages({"a": parts["a"]}, {"a": 2.0})
    assert torch.equal(got.values, alone.values)


@given(seed=st.integers(0, 2**31), scale=st.floats(1e-2, 1e2), shift=st.floats(-1e2, 1e2))
def test_per_reward_ignores_units_of_parts_and_scale_of_weights(seed, scale, shift):
    parts = random_parts(seed)
    before = per_reward_advantages(parts, {"a": 1.0, "b": 0.25, "c": 0.5}, eps=0.0)
    changed = parts | {"a": parts["a"] * scale + shift}
    after = per_reward_advantages(changed, {"a": scale, "b": 0.25 * scale, "c": 0.5 * scale}, eps=0.0)
    torch.testing.assert_close(before.values, after.values, atol=1e-9, rtol=0)
    assert torch.equal(before.is_tied, after.is_tied)


@given(seed=st.integers(0, 2**31), whitened=st.booleans())
def test_per_reward_sums_to_zero_and_follows_a_permutation(seed, whitened):
    parts, weights = random_parts(seed), {"a": 1.0, "b": 0.25, "c": 0.5}
    got = per_reward_advantages(parts, weights, whiten=whitened).values
    torch.testing.assert_close(got.sum(dim=1), torch.zeros(5, dtype=F64), atol=1e-12, rtol=0)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    permuted = per_reward_advantages({name: part[:, order] for name, part in parts.items()}, weights, whiten=whitened).values
    torch.testing.assert_close(permuted, got[:, order], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("parts", "weights", "options", "message"),
    [
        ({"a": torch.ones(2, 2)}, {"b": 1.0}, {}, r"must name the parts \['a'\], got \['b'\]"),
        ({"a": torch.ones(2, 2)}, {"a": -1.0}, {}, "reward weight of 'a' must be finite and >= 0, got -1.0"),
        ({"a": torch.ones(2, 2)}, {"a": math.nan}, {}, "reward weight of 'a' must be finite and >= 0, got nan"),
        ({"a": torch.ones(2, 2)}, {"a": 0.0}, {}, "some reward weight must be positive"),
        ({"a": torch.ones(2, 1)}, {"a": 1.0}, {}, "group size must be at least 2 for per_reward advantages, got 1"),
        ({"a": torch.ones(2, 2), "b": torch.ones(2, 3)}, {"a": 1.0, "b": 1.0}, {}, r"share one shape \[P, G\]"),
        ({"a": torch.tensor([[0.0, math.inf]])}, {"a": 1.0}, {}, "reward part 'a' must be finite or NaN .* prompt 0"),
        ({"a": torch.ones(2, 2)}, {"a": 1.0}, {"std": "unbiased"}, "got 'unbiased'"),
        ({"a": torch.ones(2, 2)}, {"a": 1.0}, {"eps": math.nan}, "eps must be finite and >= 0, got nan"),
    ],
)
def test_per_reward_refuses(parts, weights, options, message):
    with pytest.raises(ValueError, match=message):
        per_reward_advantages(parts, weights, **options)


def test_keep_top_silences_all_but_the_best_share():
    rewards = torch.tensor([[3.0, 1.0, 2.0, 2.0], [math.nan, 1.0, 5.0, math.nan], [math.nan] * 4])
    advantages = Advantages(values=torch.arange(1.0, 13.0, dtype=F64).view(3, 4), is_tied=torch.tensor([False, False, True]))
    # ceil(0.5 * 4) = 2: the best and, of the two that tie at the border, the first; ceil(0.5 * 2) = 1; nothing is scored.
    got = keep_top(advantages, rewards, ratio=0.5)
    assert got.values.tolist() == [[1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 7.0, 0.0], [0.0] * 4]
    assert got.is_tied.tolist() == [False, False, True]
    # ceil(0.26 * 4) = 2, ceil(0.26 * 2) = 1; a small share keeps one.
    assert keep_top(advantages, rewards, ratio=0.26).values[0].tolist() == [1.0, 0.0, 3.0, 0.0]
    assert keep_top(advantages, rewards, ratio=1e-12).values[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert keep_top(advantages, rewards, ratio=1.0).values[:2].tolist() == [[1.0, 2.0, 3.0, 4.0], [0.0, 6.0, 7.0, 0.0]]


@pytest.mark.parametrize(("ratio", "size", "kept"), [(0.07, 100, 7), (0.56, 25, 14), (0.1, 30, 3), (0.071, 100, 8)])
def test_keep_top_counts_shares_that_are_not_exact_in_binary(ratio, size, kept):
    rewards = torch.arange(float(size))[None]
    advantages = compute_advantages(rewards, method="mean_only")
    got = keep_top(replace(advantages, values=torch.ones_like(advantages.values)), rewards, ratio=ratio).values
    assert got[0].tolist() == [0.0] * (size - kept) + [1.0] * kept


@given(seed=st.integers(0, 2**31), ratio=st.floats(0.01, 1.0))
def test_keep_top_agrees_with_a_naive_ranking(seed, ratio):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 4, (3, 6), generator=generator).to(F64)
    rewards[torch.rand(3, 6, generator=generator) < 0.3] = math.nan
    advantages = compute_advantages(rewards)
    got = keep_top(advantages, rewards, ratio=ratio).values
    for p, group in enumerate(rewards.tolist()):
        ranked = sorted((-r, g) for g, r in enumerate(group) if not math.isnan(r))
        best = {g for _, g in ranked[: math.ceil(ratio * len(ranked))]}
        assert [float(x) for x in got[p]] == [float(advantages.values[p, g]) if g in best else 0.0 for g in range(6)]


@pytest.mark.parametrize(
    ("rewards", "ratio", "message"),
    [
        (torch.ones(2, 2), 0.0, r"ratio must be within \(0, 1\], got 0.0"),
        (torch.ones(2, 2), 1.5, r"ratio must be within \(0, 1\], got 1.5"),
        (torch.ones(2, 2), math.nan, r"ratio must be within \(0, 1\], got nan"),
        (torch.ones(2, 3), 0.5, r"rewards must have shape \[2, 2\], got \[2, 3\]"),
        (torch.tensor([[0.0, 1.0], [math.inf, 1.0]]), 0.5, "infinite one for prompt 1"),
    ],
)
def test_keep_top_refuses(rewards, ratio, message):
    with pytest.raises(ValueError, match=message):
        keep_top(Advantages(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)), rewards, ratio=ratio)


@pytest.mark.parametrize(("scope", "std"), list(product(["group", "batch"], ["sample", "population"])))
def test_whiten_agrees_with_a_naive_loop_over_valid_entries(scope, std):
    generator = torch.Generator().manual_seed(8)
    values = torch.randn(3, 4, 5, dtype=F64, generator=generator)
    is_valid = torch.rand(3, 4, 5, generator=generator) < 0.6
    values[~is_valid] = math.nan
    got = whiten(values, is_valid, scope=scope, eps=1e-3, std=std)
    want = torch.zeros_like(values)
    for place in [(p,) for p in range(3)] if scope == "group" else [()]:
        members = [x for x in values[place].flatten().tolist() if not math.isnan(x)]
        mean = sum(members) / len(members)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in members) / (len(members) - (std == "sample")))
        want[place] = torch.where(is_valid[place], (values[place] - mean) / (deviation + 1e-3), 0.0)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


def test_whiten_by_group_never_sees_another_group_nor_padding():
    values = torch.randn(3, 6, dtype=F64, generator=torch.Generator().manual_seed(9))
    is_valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 6])
    before = whiten(values, is_valid, scope="group", eps=1e-4)
    values[0] += 1e6
    values[1, 4:] = -math.inf
    after = whiten(values, is_valid, scope="group", eps=1e-4)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(whiten(values, is_valid, scope="batch", eps=1e-4)[2], after[2])


@pytest.mark.parametrize("size", [6, 8, 16])
def test_whiten_gives_exact_zeros_where_nothing_differs(size):
    values = torch.cat([torch.full((1, size), 0.1), torch.arange(2.0 * size).view(2, size)])
    is_valid = torch.ones(3, size, dtype=torch.bool)
    is_valid[1, 1:] = False
    is_valid[2] = False
    assert torch.count_nonzero(whiten(values, is_valid, scope="group", eps=0.0)) == 0
    assert torch.count_nonzero(whiten(values[:1], is_valid[:1], scope="batch", eps=0.0)) == 0
    assert torch.count_nonzero(whiten(values[2:], is_valid[2:], scope="batch", eps=0.0)) == 0


def test_whiten_is_detached_float64():
    got = whiten(torch.randn(2, 3, requires_grad=True), torch.ones(2, 3, dtype=torch.bool), scope="batch", eps=1e-4)
    assert got.dtype == F64
    assert not got.requires_grad


@pytest.mark.parametrize(
    ("values", "is_valid", "options", "message"),
    [
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), {"scope": "row"}, "must be 'group' or 'batch', got 'row'"),
        (torch.ones(2, 2), torch.ones(2, 2), {}, r"share one shape .* got torch.float32 \[2, 2\] and torch.float32 \[2, 2\]"),
        (torch.ones(2, 2), torch.ones(2, 3, dtype=torch.bool), {}, r"and torch.bool \[2, 3\]"),
        (torch.ones(2), torch.ones(2, dtype=torch.bool), {}, r"share one shape \[P, ...\]"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.bool), {}, "got torch.int64"),
        (torch.tensor([[0.0, math.nan]]), torch.ones(1, 2, dtype=torch.bool), {}, r"finite where valid, got nan at \[0, 1\]"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), {"eps": -1.0}, "eps must be finite and >= 0, got -1.0"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), {"std": "biased"}, "got 'biased'"),
    ],
)
def test_whiten_refuses(values, is_valid, options, message):
    with pytest.raises(ValueError, match=message):
        whiten(values, is_valid, **({"scope": "batch", "eps": 1e-4} | options))


@pytest.mark.parametrize("std", ["sample", "population"])
def test_a_batch_that_ties_has_no_scale_and_a_value_baseline_is_not_divided_by_eps(std):
    values = torch.tensor([0.1, -0.2], dtype=torch.float64)
    tied = compute_advantages(torch.full((2, 3), 0.3), method="batch", std=std, values=values)
    plain = compute_advantages(torch.full((2, 3), 0.3), method="mean_only", values=values)
    assert torch.equal(tied.values, plain.values)  # 0.2 and 0.5, and not 2000 and 5000
    differing = torch.tensor([[0.3, 0.3, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)
    deviation = differing.std(unbiased=std == "sample")
    scaled = compute_advantages(differing, method="batch", std=std, values=values).values
    torch.testing.assert_close(scaled, (differing - values[:, None]) / (deviation + 1e-4))
