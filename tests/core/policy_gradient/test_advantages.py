import math
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.policy_gradient.advantages import METHODS, OWN_BASELINE, compute_advantages

F64 = torch.float64
NAN = math.nan
STDS = ("sample", "population")
ONES = torch.ones(2, 2)


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


def test_reinforce_plus_plus_does_not_shrink_where_prompts_have_unlike_means():
    """Distances to the means are -1 and 1 in both groups, and their deviation is sqrt(4 / 3)."""
    rewards = torch.tensor([[0.0, 2.0], [1000.0, 1002.0]], dtype=F64)
    apart, spread_out = (compute_advantages(rewards, method=m, eps=0.0).values for m in ("reinforce_plus_plus", "batch"))
    one = math.sqrt(3) / 2
    torch.testing.assert_close(apart, torch.tensor([[-one, one], [-one, one]], dtype=F64), atol=1e-12, rtol=0)
    assert float(spread_out.abs().max()) < 0.002


test_refuses = refuses(
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
    by=compute_advantages,
)
