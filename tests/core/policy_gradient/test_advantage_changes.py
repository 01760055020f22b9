import math
from dataclasses import replace
from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from grpo_pipeline.core.policy_gradient.advantage_changes import apply_prompt_weights, clip_advantages, keep_top, subtract_penalty
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.types import Advantages

F64 = torch.float64
NAN = math.nan


@given(seed=st.integers(0, 2**31), ratio=st.floats(0.01, 1.0))
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


def test_a_clip_bounds_both_sides_of_samples_and_of_decisions_and_keeps_the_rest():
    values = torch.tensor([[-7.0, -1.5, 0.0, 1.5, 7.0]], dtype=F64)
    before = Advantages(values, torch.tensor([False]))
    assert clip_advantages(before, largest=2.0).values.tolist() == [[-2.0, -1.5, 0.0, 1.5, 2.0]]
    of_decisions = Advantages(values[..., None], before.is_tied)
    assert clip_advantages(of_decisions, largest=2.0).values.flatten().tolist() == [-2.0, -1.5, 0.0, 1.5, 2.0]
    assert clip_advantages(before, largest=2.0).is_tied is before.is_tied


def test_prompt_weights_multiply_and_penalties_are_charged_beyond_their_mean():
    plain = compute_advantages(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), eps=0.0)
    weighted = apply_prompt_weights(plain, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(weighted.values, plain.values * torch.tensor([[1.0], [3.0]]), atol=1e-15, rtol=0)
    before = Advantages(torch.tensor([[0.5, 0.5, 0.5]], dtype=F64), torch.tensor([False]))
    got = subtract_penalty(before, torch.tensor([[1.0, 3.0, NAN]], requires_grad=True), torch.tensor([[True, True, False]]))
    assert got.values.tolist() == [[1.5, -0.5, 0.5]]
    assert (got.values.requires_grad, got.is_tied) == (False, before.is_tied)


ONES, SCORED = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)
ADVANTAGES = Advantages(torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool))

test_keep_top_refuses = refuses(
    ({"rewards": ONES, "ratio": 0.0}, r"ratio must be within \(0, 1\], got 0.0"),
    ({"rewards": ONES, "ratio": 1.5}, r"ratio must be within \(0, 1\], got 1.5"),
    ({"rewards": torch.ones(2, 3), "ratio": 0.5}, r"rewards must have shape \[2, 2\], got \[2, 3\]"),
    ({"rewards": torch.tensor([[0.0, 1.0], [math.inf, 1.0]]), "ratio": 0.5}, "infinite one for prompt 1"),
    by=partial(keep_top, ADVANTAGES),
)

test_clip_advantages_refuses = refuses(
    ({"largest": 0.0}, "largest advantage must be above 0, got 0.0"),
    ({"largest": NAN}, "largest advantage must be above 0, got nan"),
    by=partial(clip_advantages, ADVANTAGES),
)

test_apply_prompt_weights_refuses = refuses(
    ({"weights": torch.ones(3)}, "shape"),
    ({"weights": torch.tensor([1.0, -1.0])}, "-1.0 for prompt 1"),
    ({"weights": torch.tensor([NAN, 1.0])}, "nan for prompt 0"),
    by=partial(apply_prompt_weights, ADVANTAGES),
)

test_subtract_penalty_refuses = refuses(
    ({"penalty": torch.ones(2), "is_scored": SCORED}, r"must have shape \[2, 2\], got \[2\]"),
    ({"penalty": ONES, "is_scored": SCORED[0]}, r"must have shape \[2, 2\], got \[2\]"),
    by=partial(subtract_penalty, ADVANTAGES),
)
