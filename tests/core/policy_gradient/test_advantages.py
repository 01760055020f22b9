import math
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from grpo_pipeline.core.policy_gradient.advantages import (
    METHODS,
    OWN_BASELINE,
    apply_prompt_weights,
    clip_advantages,
    compute_advantages,
    decision_advantages,
    keep_top,
    per_reward_advantages,
    subtract_penalty,
    whiten,
)
from grpo_pipeline.core.types import Advantages, Credits

F64 = torch.float64
NAN = math.nan
STDS = ("sample", "population")
SEEDS = st.integers(0, 2**31)


def score(xs, std, eps):
    """Standard scores of the entries that are not NaN, in numpy; NaN where nothing can be compared."""
    known = xs[~np.isnan(xs)]
    return np.full_like(xs, NAN) if len(known) < 2 else (xs - known.mean()) / (known.std(ddof=int(std == "sample")) + eps)


def naive(rewards, *, method, std, eps, values=None):
    """One prompt at a time; no two rewards are alike."""
    result = np.zeros_like(rewards)
    for p, group in enumerate(rewards):
        n, total = np.isfinite(group).sum(), np.nansum(group)
        centred = group - (total / max(1, n) if values is None else values[p])
        if method == "leave_one_out":
            centred = group - (total - group) / max(1, n - 1)
        apart = rewards - np.nan_to_num(np.nansum(rewards, 1) / np.maximum(1, np.isfinite(rewards).sum(1)))[:, None]
        spread = {"group": group, "batch": rewards, "reinforce_plus_plus": apart}.get(method)
        if spread is not None and n > 1 - (method != "group"):
            centred = centred / (np.nanstd(spread, ddof=int(std == "sample")) + eps)
        # A lone sample has nothing to be compared with but a value.
        if n > 1 or (values is not None and method != "group"):
            result[p] = np.nan_to_num(centred)
    return torch.from_numpy(result)


@pytest.mark.parametrize(
    ("method", "std", "with_values"),
    [
        (method, std, with_values)
        for method, std, with_values in product(METHODS, STDS, [False, True])
        if not (with_values and method in OWN_BASELINE)
    ],
)
@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_agrees_with_a_naive_loop(method, std, with_values, eps):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(7, 6, dtype=F64, generator=generator)
    rewards[2:5][torch.rand(3, 6, generator=generator) < 0.4] = NAN
    rewards[5], rewards[6, 1:] = NAN, NAN
    values = torch.randn(7, dtype=F64, generator=generator) if with_values else None
    names = {"method": method, "std": std, "eps": eps}
    want = naive(rewards.numpy(), values=None if values is None else values.numpy(), **names)
    got = compute_advantages(rewards.requires_grad_(), values=None if values is None else values.requires_grad_(), **names)
    torch.testing.assert_close(got.values, want, atol=1e-12, rtol=0)
    assert (got.values.dtype, got.values.requires_grad) == (F64, False)
    assert not got.values[rewards.isnan()].any()
    # Nothing scored is not a tie; one scored sample is.
    assert torch.equal(got.is_tied, (~rewards.isnan()).sum(dim=1) == 1)


@pytest.mark.parametrize("method", METHODS)
def test_constant_float32_groups_are_exactly_zero_and_counted(method):
    constants = torch.rand(500, 1, generator=torch.Generator().manual_seed(2)) * 2 - 1
    rewards = constants.expand(500, 6).contiguous()
    # The trap is real: in float32 such a group is often 1 ulp off its mean.
    assert bool((rewards - rewards.mean(dim=1, keepdim=True) != 0).any())
    got = compute_advantages(rewards, method=method, eps=1e-9)
    assert torch.count_nonzero(got.values) == 0
    assert bool(got.is_tied.all())


def test_a_group_within_rounding_of_its_dtype_ties_and_a_real_difference_does_not():
    next_up = float(torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)))
    got = compute_advantages(torch.tensor([[1.0, next_up], [1.0, 1.0 + 1e-5], [1e-6, 2e-6]]))
    assert got.is_tied.tolist() == [True, False, False]  # rewards of a small scale are not swallowed
    assert torch.count_nonzero(got.values[0]) == 0 < float(got.values[1, 1])
    assert not bool(compute_advantages(torch.tensor([[1.0, next_up]], dtype=F64)).is_tied.any())


@pytest.mark.parametrize("std", STDS)
def test_a_tie_still_teaches_against_values_and_is_not_divided_by_eps(std):
    values = torch.tensor([0.1, -0.2], dtype=F64)
    for tied in (torch.full((2, 3), 0.3), torch.full((2, 1), 0.3)):  # groups of 1, too
        for method in ("batch", "mean_only"):  # 0.2 and 0.5, and not 2000 and 5000
            got = compute_advantages(tied, method=method, std=std, values=values)
            torch.testing.assert_close(got.values, (0.3 - values)[:, None].expand(tied.shape), atol=1e-7, rtol=0)
            assert got.is_tied.tolist() == [True, True]
    assert not compute_advantages(torch.full((2, 3), 0.3), method="group", values=values).values.any()


def naive_per_reward(components, weights, *, std, eps, whitened):
    """One group and one component at a time: scores, NaN where nothing teaches; and which groups tie."""
    summed, has_tie = np.full((5, 4), NAN), np.zeros(5, dtype=bool)
    for p, name in product(range(5), [name for name in components if weights[name] > 0]):
        group = components[name][p].numpy()
        if len(np.unique(group[~np.isnan(group)])) < 2:
            has_tie[p] |= not np.isnan(group).all()
        else:
            part = weights[name] * score(group, std, eps)
            summed[p] = np.where(np.isnan(part), summed[p], np.nan_to_num(summed[p]) + part)
    is_tied = has_tie & np.isnan(summed).all(axis=1)
    return torch.from_numpy(score(summed, std, eps) if whitened else summed), torch.from_numpy(is_tied)


@given(seed=SEEDS, std=st.sampled_from(STDS), eps=st.sampled_from([1e-4, 0.1]), whitened=st.booleans())
def test_per_reward_agrees_with_a_naive_loop(seed, std, eps, whitened):
    """Parts of few levels, so that some tie; some entries, and for "b" a whole group, are not scored; "c" has no weight."""
    generator = torch.Generator().manual_seed(seed)
    components = {name: torch.randint(0, 3, (5, 4), generator=generator).to(F64) for name in "abc"}
    for component in components.values():
        component[torch.rand(5, 4, generator=generator) < 0.25] = NAN
    components["b"][0], components["c"][1, 1] = NAN, math.inf
    weights = {"a": 1.0, "b": 0.25, "c": 0.0}
    got = per_reward_advantages(components, weights, std=std, eps=eps, whiten=whitened)
    want, is_tied = naive_per_reward(components, weights, std=std, eps=eps, whitened=whitened)
    torch.testing.assert_close(got.values, want.nan_to_num(), atol=1e-12, rtol=0)
    assert torch.count_nonzero(got.values[want.isnan()]) == 0
    assert torch.equal(got.is_tied, is_tied)


@pytest.mark.parametrize("whitened", [False, True])
def test_parts_that_tie_or_cancel_are_exactly_zero_and_whitening_does_not_move_them(whitened):
    tied = torch.full((3, 6), 0.1)
    varied = torch.arange(18, dtype=torch.float32).view(3, 6)
    mixed = torch.cat([tied, varied])
    score = partial(per_reward_advantages, eps=1e-9, whiten=whitened)
    weights = {"a": 0.7, "b": 0.3}
    got = score({"a": mixed, "b": mixed}, weights)
    assert got.is_tied.tolist() == [True] * 3 + [False] * 3
    assert torch.count_nonzero(got.values[:3]) == 0
    # The tied groups leave the statistics of the whitening: it sees the other three alone.
    torch.testing.assert_close(got.values[3:], score({"a": varied, "b": varied}, weights).values, atol=1e-12, rtol=0)
    other = score({"a": tied, "b": varied}, weights)  # one component that ties adds exactly nothing
    assert not bool(other.is_tied.any())
    torch.testing.assert_close(other.values, score({"b": varied}, {"b": 0.3}).values, atol=1e-8, rtol=0)
    component = torch.rand(3, 7, dtype=F64, generator=torch.Generator().manual_seed(7))
    cancelled = per_reward_advantages({"a": component, "b": -component}, {"a": 1e-3, "b": 1e-3}, eps=0.0)
    assert torch.count_nonzero(cancelled.values) == 0


@given(seed=SEEDS, ratio=st.floats(0.01, 1.0))
def test_keep_top_agrees_with_a_naive_ranking(seed, ratio):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 4, (3, 6), generator=generator).to(F64)
    rewards[torch.rand(3, 6, generator=generator) < 0.3] = NAN
    advantages = replace(compute_advantages(rewards), values=torch.randn(3, 6, dtype=F64, generator=generator))
    got = keep_top(advantages, rewards, ratio=ratio)
    assert got.is_tied is advantages.is_tied
    for p, group in enumerate(rewards.tolist()):
        ranked = sorted((-r, g) for g, r in enumerate(group) if not math.isnan(r))
        best = {g for _, g in ranked[: math.ceil(ratio * len(ranked))]}
        assert got.values[p].tolist() == [float(advantages.values[p, g]) if g in best else 0.0 for g in range(6)]


def test_keep_top_counts_shares_that_are_not_exact_in_binary():
    for share, size, kept in ((0.07, 100, 7), (0.56, 25, 14), (0.1, 30, 3), (0.071, 100, 8), (1e-12, 4, 1), (1.0, 4, 4)):
        whole = Advantages(torch.ones(1, size, dtype=F64), torch.tensor([True]))
        assert keep_top(whole, torch.arange(float(size))[None], ratio=share).values.sum() == kept


@pytest.mark.parametrize(("scope", "std"), list(product(["group", "batch"], STDS)))
def test_whiten_agrees_with_a_naive_loop_over_valid_entries(scope, std):
    generator = torch.Generator().manual_seed(8)
    values = torch.randn(3, 4, 5, dtype=F64, generator=generator)
    is_valid = torch.rand(3, 4, 5, generator=generator) < 0.6
    rows = values.masked_fill(~is_valid, NAN).numpy().reshape(3 if scope == "group" else 1, -1)
    want = torch.from_numpy(np.stack([score(row, std, 1e-3) for row in rows])).view_as(values).nan_to_num()
    values[~is_valid], values[0][~is_valid[0]] = -math.inf, NAN
    got = whiten(values.requires_grad_(), is_valid, scope=scope, eps=1e-3, std=std)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    assert not got.requires_grad
    assert whiten(values.detach().float(), is_valid, scope=scope, eps=1e-3).dtype == F64
    # Exact zeros where nothing differs.
    for row, valid in ([0.1] * 6, [True] * 6), ([0.0, 1.0, 2.0], [True, False, False]), ([0.0, 1.0], [False, False]):
        assert not whiten(torch.tensor([row]), torch.tensor([valid]), scope=scope, eps=0.0, std=std).any()


def test_only_rounding_is_silent_when_values_are_whitened():
    # Spreads of 2e-9 and of 2e-13, beside 1: the first is (d, 0, -d) / d, the second is rounding.
    x = 1.0 + torch.tensor([[1e-9, 0.0, -1e-9], [1e-13, 0.0, -1e-13]], dtype=torch.float64)
    found = whiten(x, torch.ones_like(x, dtype=torch.bool), scope="group", eps=0.0)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, -1.0], [0.0] * 3], dtype=torch.float64), atol=1e-6, rtol=0)


def test_reinforce_plus_plus_does_not_shrink_where_prompts_have_unlike_means():
    """Distances to the means are -1 and 1 in both groups, and their deviation is sqrt(4 / 3)."""
    rewards = torch.tensor([[0.0, 2.0], [1000.0, 1002.0]], dtype=F64)
    apart, spread_out = (compute_advantages(rewards, method=m, eps=0.0).values for m in ("reinforce_plus_plus", "batch"))
    one = math.sqrt(3) / 2
    torch.testing.assert_close(apart, torch.tensor([[-one, one], [-one, one]], dtype=F64), atol=1e-12, rtol=0)
    assert float(spread_out.abs().max()) < 0.002


def test_a_clip_bounds_both_sides_of_samples_and_of_decisions_and_keeps_the_rest():
    values = torch.tensor([[-7.0, -1.5, 0.0, 1.5, 7.0]], dtype=F64)
    before = Advantages(values, torch.tensor([False]))
    assert clip_advantages(before, largest=2.0).values.tolist() == [[-2.0, -1.5, 0.0, 1.5, 2.0]]
    of_decisions = Advantages(values[..., None], before.is_tied)
    assert clip_advantages(of_decisions, largest=2.0).values.flatten().tolist() == [-2.0, -1.5, 0.0, 1.5, 2.0]
    assert clip_advantages(before, largest=2.0).is_tied is before.is_tied


def test_a_prompt_weight_survives_and_a_penalty_is_charged_beyond_the_mean_of_the_scored_samples():
    plain = compute_advantages(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), eps=0.0)
    weighted = apply_prompt_weights(plain, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(weighted.values, plain.values * torch.tensor([[1.0], [3.0]]), atol=1e-15, rtol=0)
    before = Advantages(torch.tensor([[0.5, 0.5, 0.5]], dtype=F64), torch.tensor([False]))
    got = subtract_penalty(before, torch.tensor([[1.0, 3.0, NAN]], requires_grad=True), torch.tensor([[True, True, False]]))
    assert got.values.tolist() == [[1.5, -0.5, 0.5]]
    assert (got.values.requires_grad, got.is_tied) == (False, before.is_tied)


ONES, SCORED = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
PAIR = {"a": ONES}
ADVANTAGES = Advantages(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))


def rows(call, *cases):
    return [(partial(call, **arguments), message) for arguments, message in cases]


def whitened(values=ONES, is_valid=SCORED, scope="batch", eps=1e-4, **options):
    return whiten(values, is_valid, scope=scope, eps=eps, **options)


test_refuses = refuses(
    *rows(
        compute_advantages,
        ({"rewards": torch.ones(3)}, r"shape \[P, G\], got \[3\]"),
        ({"rewards": torch.ones(3, 1)}, "group size must be at least 2 for group advantages, got 1"),
        ({"rewards": torch.ones(3, 1), "method": "leave_one_out"}, "group size must be at least 2"),
        ({"rewards": torch.ones(3, 1), "values": torch.ones(3)}, "group size must be at least 2"),
        ({"rewards": torch.tensor([[0.0, 1.0], [0.0, -math.inf]])}, "infinite one for prompt 1"),
        ({"rewards": ONES, "method": "zscore"}, "must be one of .* got 'zscore'"),
        ({"rewards": ONES, "std": "unbiased"}, "got 'unbiased'"),
        ({"rewards": ONES, "eps": -1e-4}, "eps must be finite and >= 0, got -0.0001"),
        ({"rewards": ONES, "tie_tolerance": math.inf}, "tie_tolerance must be finite and >= 0, got inf"),
        ({"rewards": ONES, "values": torch.ones(3)}, r"values must have shape \[2\], got \[3\]"),
        ({"rewards": ONES, "values": torch.ones(2), "method": "leave_one_out"}, "values must be None for leave_one_out"),
        ({"rewards": ONES, "values": torch.ones(2), "method": "reinforce_plus_plus"}, "None for reinforce_plus_plus"),
    ),
    *rows(
        per_reward_advantages,
        ({"components": PAIR, "weights": {"b": 1.0}}, r"must name the components \['a'\], got \['b'\]"),
        ({"components": PAIR, "weights": {"a": -1.0}}, "reward weight of 'a' must be finite and >= 0, got -1.0"),
        ({"components": PAIR, "weights": {"a": 0.0}}, "some reward weight must be positive"),
        ({"components": {"a": torch.ones(2, 1)}, "weights": {"a": 1.0}}, "at least 2 for per_reward advantages, got 1"),
        ({"components": PAIR | {"b": torch.ones(2, 3)}, "weights": {"a": 1.0, "b": 1.0}}, r"share one shape \[P, G\]"),
        ({"components": {"a": torch.tensor([[0.0, math.inf]])}, "weights": {"a": 1.0}}, "'a' must be finite or NaN .* prompt 0"),
    ),
    *rows(
        partial(keep_top, ADVANTAGES),
        ({"rewards": ONES, "ratio": 0.0}, r"ratio must be within \(0, 1\], got 0.0"),
        ({"rewards": ONES, "ratio": 1.5}, r"ratio must be within \(0, 1\], got 1.5"),
        ({"rewards": torch.ones(2, 3), "ratio": 0.5}, r"rewards must have shape \[2, 2\], got \[2, 3\]"),
        ({"rewards": torch.tensor([[0.0, 1.0], [math.inf, 1.0]]), "ratio": 0.5}, "infinite one for prompt 1"),
    ),
    *rows(
        partial(clip_advantages, ADVANTAGES),
        ({"largest": 0.0}, "largest advantage must be above 0, got 0.0"),
        ({"largest": NAN}, "largest advantage must be above 0, got nan"),
    ),
    *rows(
        whitened,
        ({"scope": "row"}, "must be 'group' or 'batch', got 'row'"),
        ({"is_valid": ONES}, r"share one shape .* got torch.float32 \[2, 2\] and torch.float32 \[2, 2\]"),
        ({"is_valid": torch.ones(2, 3, dtype=torch.bool)}, r"and torch.bool \[2, 3\]"),
        ({"values": torch.ones(2), "is_valid": SCORED[0]}, r"share one shape \[P, ...\]"),
        ({"values": ONES.long()}, "got torch.int64"),
        ({"values": torch.tensor([[0.0, NAN]]), "is_valid": SCORED[:1]}, r"finite where valid, got nan at \[0, 1\]"),
        ({"eps": -1.0}, "eps must be finite and >= 0, got -1.0"),
    ),
    *rows(
        partial(apply_prompt_weights, ADVANTAGES),
        ({"weights": torch.ones(3)}, "shape"),
        ({"weights": torch.tensor([1.0, -1.0])}, "-1.0 for prompt 1"),
        ({"weights": torch.tensor([NAN, 1.0])}, "nan for prompt 0"),
    ),
    *rows(
        partial(subtract_penalty, ADVANTAGES),
        ({"penalty": torch.ones(2), "is_scored": SCORED}, r"must have shape \[2, 2\], got \[2\]"),
        ({"penalty": ONES, "is_scored": SCORED[0]}, r"must have shape \[2, 2\], got \[2\]"),
    ),
)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("eps", [None, 0.25])
def test_decisions_are_compared_at_their_own_position_and_an_ended_sample_counts_with_0(std, eps):
    """Three prompts of four samples that end after one to three decisions; by numpy, one position at a time."""
    rng, lengths = np.random.default_rng(3), np.array([[3, 1, 2, 3], [2, 2, 1, 3], [1, 2, 3, 3]])
    is_valid = np.arange(3) < lengths[..., None]
    values = np.where(is_valid, rng.normal(size=(3, 4, 3)), 0.0)
    values[1] = np.where(is_valid[1], 0.5, 0.0)  # alike in what was decided, but not in what had ended
    values[2] = 0.0
    values[0, 1] = NAN  # not scored
    credits = Credits(torch.from_numpy(values).requires_grad_(), torch.from_numpy(is_valid))
    found = decision_advantages(credits, std=std, **({} if eps is None else {"eps": eps}))
    wanted = np.zeros((3, 4, 3))
    for p, position in product(range(3), range(3)):
        group = values[p, :, position]
        if np.nanmax(group) > np.nanmin(group):
            wanted[p, :, position] = np.nan_to_num(score(group, std, 1e-4 if eps is None else eps))
    wanted[~is_valid] = 0.0
    np.testing.assert_allclose(found.values.numpy(), wanted, rtol=1e-12)
    assert found.values[1, :, 0].tolist() == [0.0] * 4
    assert bool(found.values[1].any())
    assert (found.is_tied.tolist(), found.values.requires_grad) == ([False, False, True], False)
    # A wide tolerance makes the second prompt tie at every position, too.
    wide = decision_advantages(credits, std=std, tie_tolerance=1.0)
    assert wide.is_tied.tolist() == [False, True, True]
