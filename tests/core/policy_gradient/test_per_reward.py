import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_scores import score
from refusals import refuses

from grpo_pipeline.core.policy_gradient.per_reward import per_reward_advantages

F64 = torch.float64
NAN = math.nan
PAIR = {"a": torch.ones(2, 2)}


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


@given(
    seed=st.integers(0, 2**31),
    std=st.sampled_from(["sample", "population"]),
    eps=st.sampled_from([1e-4, 0.1]),
    whitened=st.booleans(),
)
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


test_refuses = refuses(
    ({"components": PAIR, "weights": {"b": 1.0}}, r"must name the components \['a'\], got \['b'\]"),
    ({"components": PAIR, "weights": {"a": -1.0}}, "reward weight of 'a' must be finite and >= 0, got -1.0"),
    ({"components": PAIR, "weights": {"a": 0.0}}, "some reward weight must be positive"),
    ({"components": {"a": torch.ones(2, 1)}, "weights": {"a": 1.0}}, "at least 2 for per_reward advantages, got 1"),
    ({"components": PAIR | {"b": torch.ones(2, 3)}, "weights": {"a": 1.0, "b": 1.0}}, r"share one shape \[P, G\]"),
    ({"components": {"a": torch.tensor([[0.0, math.inf]])}, "weights": {"a": 1.0}}, "'a' must be finite or NaN .* prompt 0"),
    by=per_reward_advantages,
)
