"""The closed form beside an enumeration of subsets, and its gradient beside that of the exact expectation."""

import math
from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.pass_at_k import pass_at_k_advantages

F64 = torch.float64


def enumerated(rewards, k):
    """Add up what each sample adds to the best of k, over all subsets of the scored ones; a tied or small group adds nothing."""
    scored = [i for i, r in enumerate(rewards) if not math.isnan(r)]
    found = [0.0] * len(rewards)
    if len(scored) < k or len({rewards[i] for i in scored}) < 2:
        return found
    for i in scored:
        gains = [
            max(rewards[j] for j in subset) - max(rewards[j] for j in subset if j != i)
            for subset in combinations(scored, k)
            if i in subset
        ]
        found[i] = k * sum(gains) / len(gains)
    return found


@given(seed=st.integers(0, 2**31), k=st.integers(2, 6), levels=st.sampled_from([2, 4, 1000]))
def test_agrees_with_an_enumeration_of_subsets(seed, k, levels):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, levels, (4, 6), generator=generator).to(F64)
    rewards[torch.rand(4, 6, generator=generator) < 0.2] = math.nan
    found = pass_at_k_advantages(rewards.requires_grad_(), k=k)
    wanted = torch.tensor([enumerated(group, k) for group in rewards.tolist()], dtype=F64)
    torch.testing.assert_close(found.values, wanted, atol=1e-9, rtol=1e-12)
    assert (found.values.dtype, found.values.requires_grad) == (F64, False)


@pytest.mark.parametrize("k", [2, 3])
def test_the_mean_gradient_is_that_of_the_expected_best_of_k(k):
    """A policy over three choices; every group of three samples, weighed by its probability."""
    logits = torch.tensor([0.3, -0.4, 0.1], dtype=F64, requires_grad=True)
    pays = torch.tensor([0.0, 1.0, 0.25], dtype=F64)
    best = sum(logits.softmax(0)[list(chosen)].prod() * pays[list(chosen)].max() for chosen in product(range(3), repeat=k))
    (wanted,) = torch.autograd.grad(best, logits)
    estimate = torch.zeros(3, dtype=F64)
    for drawn in product(range(3), repeat=3):
        log_p = logits.log_softmax(0)[list(drawn)]
        advantages = pass_at_k_advantages(pays[list(drawn)][None], k=k).values[0]
        (gradient,) = torch.autograd.grad((advantages * log_p).mean(), logits)
        estimate += log_p.sum().exp().detach() * gradient
    torch.testing.assert_close(estimate, wanted, atol=1e-12, rtol=0)


def test_with_all_samples_the_best_alone_teaches_by_its_distance_to_the_second():
    found = pass_at_k_advantages(torch.tensor([[0.5, 3.0, 1.0, 2.5]]), k=4)
    assert found.values.tolist() == [[0.0, 4 * 0.5, 0.0, 0.0]]


def test_a_rare_success_teaches_more_than_beside_the_mean():
    """Of 0/1 rewards, as pass@k wants it: where most samples succeed, a further success adds little."""
    often, rarely = torch.tensor([[1.0] * 7 + [0.0]]), torch.tensor([[1.0] + [0.0] * 7])
    at_k = [float(pass_at_k_advantages(rewards, k=4).values[0, 0]) for rewards in (often, rarely)]
    plain = [float(compute_advantages(rewards, method="leave_one_out").values[0, 0]) for rewards in (often, rarely)]
    assert at_k[0] == 0.0 < plain[0]
    assert at_k[1] == 4.0 > plain[1]


test_refuses = refuses(
    (lambda: pass_at_k_advantages(torch.ones(2, 3), k=1), "k must be within 2 and the group size 3 .* got 1"),
    (lambda: pass_at_k_advantages(torch.ones(2, 3), k=4), "k must be within 2 and the group size 3 .* got 4"),
    (lambda: pass_at_k_advantages(torch.ones(3), k=2), r"rewards must have shape \[P, G\], got \[3\]"),
)
