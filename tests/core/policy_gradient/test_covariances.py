"""Selection by covariance, and what Clip-Cov and KL-Cov do with it: beside loops, and without a draw."""

import math
from itertools import product

import pytest
import torch
from surrogates import surrogate

from grpo_pipeline.core.policy_gradient.covariances import covariances, find_largest
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss

F64 = torch.float64


def example(seed, of_decisions=False):
    generator = torch.Generator().manual_seed(seed)
    old = 2 * torch.randn(2, 3, 4, dtype=F64, generator=generator) - 2
    new = old + 0.4 * torch.randn(2, 3, 4, dtype=F64, generator=generator)
    advantages = 2 * torch.randn(*((2, 3, 4) if of_decisions else (2, 3)), dtype=F64, generator=generator)
    is_valid = torch.rand(2, 3, 4, generator=generator) < 0.8
    return new.masked_fill(~is_valid, -math.inf), old.masked_fill(~is_valid, -math.inf), advantages, is_valid


def listed(old, advantages, is_valid):
    """Return (covariance, place) of each valid decision, the largest first."""
    places = [tuple(index) for index in is_valid.nonzero().tolist()]
    a = [float(advantages[i] if advantages.ndim == 3 else advantages[i[:2]]) for i in places]
    o = [float(old[i]) for i in places]
    means = sum(a) / len(a), sum(o) / len(o)
    return sorted((((x - means[0]) * (y - means[1]), i) for x, y, i in zip(a, o, places, strict=True)), reverse=True)


def naive(kind, data, options):
    """Return the mean over decisions of the loss, one decision at a time, in Python floats."""
    new, old, advantages, is_valid = data
    found = listed(old, advantages, is_valid)
    count = max(1, int(options["cov_share"] * len(found) + 1e-9))
    within = [i for c, i in found if kind == "kl_cov" or options["cov_low"] < c < options["cov_high"]]
    chosen, total = set(within[:count]), 0.0
    for _, i in found:
        a, x = float(advantages[i] if advantages.ndim == 3 else advantages[i[:2]]), float(new[i] - old[i])
        r = math.exp(x)
        if kind == "kl_cov":
            total += -a * r + (options["kl_weight"] * abs(x) if i in chosen else 0.0)
        elif i not in chosen:
            total -= min(a * r, a * min(max(r, 1 - options["clip_low"]), 1 + options["clip_high"]))
    return total / len(found)


KINDS = {
    "clip_cov": {"cov_share": 0.3, "cov_low": 0.5, "cov_high": 4.0, "clip_low": 0.2, "clip_high": 0.28},
    "kl_cov": {"cov_share": 0.3, "kl_weight": 0.7},
}


@pytest.mark.parametrize(("kind", "of_decisions", "seed"), list(product(KINDS, (False, True), range(4))))
def test_agrees_with_a_naive_loop_and_finite_differences(kind, of_decisions, seed):
    data, options = example(seed, of_decisions), KINDS[kind]
    given = surrogate(kind, reduction="per_decision", **options)
    assert float(policy_loss(*data, given)) == pytest.approx(naive(kind, data, options), rel=1e-12, abs=1e-12)
    new, *rest = data
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, *rest, given), new.requires_grad_())


def test_the_shares_add_up_to_the_covariance_and_padding_has_none():
    new, _, advantages, is_valid = example(0, of_decisions=True)
    found = covariances(new.requires_grad_(), advantages, is_valid)
    wanted = torch.cov(torch.stack([advantages[is_valid], new[is_valid]]), correction=0)[0, 1].detach()
    torch.testing.assert_close(found.sum() / is_valid.sum(), wanted)
    assert torch.count_nonzero(found[~is_valid]) == 0
    assert not found.requires_grad


def test_a_share_is_rounded_down_to_at_least_one_and_the_earlier_equal_goes_first():
    values = torch.tensor([[[1.0, 3.0, 3.0, 2.0, 9.0]]])
    is_candidate = torch.tensor([[[True, True, True, True, False]]])

    def chosen(share, of=5):
        return find_largest(values, is_candidate, share=share, of=of).flatten().nonzero().flatten().tolist()

    assert [chosen(share) for share in (0.01, 0.39, 0.4, 0.6, 0.99)] == [[1], [1], [1, 2], [1, 2, 3], [0, 1, 2, 3]]
    assert chosen(0.29, of=10) == [1, 2]
    assert not find_largest(values, torch.zeros_like(is_candidate), share=0.5, of=5).any()


def test_where_no_covariance_lies_within_the_bounds_nothing_falls_silent():
    data = example(1)
    far = surrogate("clip_cov", cov_low=1e3, cov_high=2e3)
    torch.testing.assert_close(policy_loss(*data, far), policy_loss(*data, surrogate("grpo")), atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_of_a_batch_uses_what_was_selected_of_the_whole(kind):
    new, old, advantages, is_valid = example(2)
    given = surrogate(kind, reduction="per_decision", **KINDS[kind])
    selected = given.select(old, advantages, is_valid)
    whole = policy_loss(new, old, advantages, is_valid, given)
    pieces = [
        policy_loss(
            new[p : p + 1], old[p : p + 1], advantages[p : p + 1], is_valid[p : p + 1], given,
            denominator=is_valid.sum(), selected=selected[p : p + 1],
        )
        for p in range(2)
    ]  # fmt: skip
    torch.testing.assert_close(sum(pieces), whole, atol=1e-14, rtol=0)
