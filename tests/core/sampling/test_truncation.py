import math
from functools import partial

import pytest
import torch
from refusals import refuses
from scipy.stats import chisquare

from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.sampling.truncation import action_logprobs, kept_choices, sample_categorical, truncated_log_probs

F64 = torch.float64
INF, SHORT = float("inf"), torch.tensor([[True, False], [False, False]])
LIMITS = [
    {}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.6, "temperature": 2.0},
    {"top_k": 99, "top_p": 1.0}, {"top_k": 1}, {"top_p": 1e-9},
]  # fmt: skip


def naive_row(logits, *, temperature=1.0, top_k=None, top_p=None, allowed=None):
    """One row with Python's lists: rank, cut, renormalise."""
    z = {v: logit / temperature for v, logit in enumerate(logits) if allowed is None or allowed[v]}
    ranked = sorted(z, key=lambda v: (-z[v], v))[:top_k]
    if top_p is not None and top_p < 1:
        total = math.fsum(math.exp(z[v]) for v in ranked)
        count = 1
        while math.fsum(math.exp(z[v]) for v in ranked[:count]) / total < top_p:
            count += 1
        ranked = ranked[:count]
    log_total = math.log(math.fsum(math.exp(z[v]) for v in ranked))
    return [z[v] - log_total if v in ranked else -INF for v in range(len(logits))]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("limits", LIMITS)
def test_agrees_with_a_naive_row_and_unmoved_weights_score_what_was_sampled(limits, masked):
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 5, 9, dtype=F64, generator=generator)
    logits[0, 0] = 0.0  # a row of ties
    allowed = (torch.rand(2, 5, 9, generator=generator) < 0.6) | (not masked)
    allowed[..., 4] = True
    got = truncated_log_probs(logits, **limits, is_allowed=allowed if masked else None)
    want = [
        [naive_row(row.tolist(), **limits, allowed=ok.tolist()) for row, ok in zip(*rows, strict=True)]
        for rows in zip(logits, allowed, strict=True)
    ]
    torch.testing.assert_close(got, torch.tensor(want, dtype=F64), atol=1e-12, rtol=0)
    actions = sample_categorical(got, generator=generator)
    kept = kept_choices(logits, **limits, is_allowed=allowed if masked else None)
    again = action_logprobs(truncated_log_probs(logits, temperature=limits.get("temperature", 1.0), kept=kept), actions)
    assert torch.equal(again, action_logprobs(got, actions))
    assert bool(again.isfinite().all())


@pytest.mark.parametrize(
    ("logits", "limits", "wanted"),
    [
        # Even masses 1/4, 1/2, 3/4, 1: the smallest set that reaches p; ties are broken by the index.
        ([0.0] * 4, {"top_p": 0.5}, [1, 1, 0, 0]),
        ([0.0] * 4, {"top_p": 0.51}, [1, 1, 1, 0]),
        ([0.0] * 4, {"top_k": 1}, [1, 0, 0, 0]),
        ([0.0] * 4, {"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),  # half of what top-k leaves
        ([0.0, 0.0, 1.0, 0.0], {"top_k": 2}, [1, 0, 1, 0]),
        ([0.0] * 5000, {"top_k": 700}, [1] * 700 + [0] * 4300),
        # top_p = 1 keeps a tail that rounding hides.
        ([0.0, -50.0, -60.0], {"top_p": 1.0}, [1, 1, 1]),
        ([0.0, -50.0, -60.0], {"top_k": 2, "top_p": 1.0}, [1, 1, 0]),
        # Masses behind the first choice: 2.06e-9, 0.76e-9, 0.28e-9. All but 3.1e-9 is short of p, all but 1.04e-9 is not.
        ([0.0, -20.0, -21.0, -22.0], {"top_p": 1 - 2e-9}, [1, 1, 0, 0]),
    ],
)
def test_what_is_kept_of_ties_and_tails(logits, limits, wanted):
    assert kept_choices(torch.tensor([logits]), **limits)[0].int().tolist() == wanted


@pytest.mark.parametrize("limits", [{"top_k": 4, "temperature": 0.7}, {"top_p": 0.8}])
def test_draws_follow_the_log_probs(limits):
    logits = torch.tensor([0.0, 0.7, -0.5, 1.2, -2.0, 0.3], dtype=F64)
    n = 40_000
    log_probs = truncated_log_probs(logits, **limits)
    drawn = sample_categorical(log_probs.expand(n, 6), generator=torch.Generator().manual_seed(5))
    counts = torch.bincount(drawn, minlength=6)
    kept = log_probs > -INF
    assert 2 < int(kept.sum()) < 6
    assert int(counts[~kept].sum()) == 0
    assert chisquare(counts[kept].numpy(), (n * log_probs[kept].exp()).numpy()).pvalue > 0.01
    # The test has power: the same draws are refused as draws at another temperature.
    other = truncated_log_probs(logits, temperature=1.4, kept=kept)[kept].exp()
    assert chisquare(counts[kept].numpy(), (n * other).numpy()).pvalue < 1e-6


def test_draws_are_of_the_generator_alone_and_never_an_excluded_choice(monkeypatch):
    log_probs = torch.randn(3, 4, 50).log_softmax(-1)
    state = torch.get_rng_state()
    first, second = (sample_categorical(log_probs, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (3, 4)
    assert torch.equal(torch.get_rng_state(), state)
    # Even if the noise is extreme.
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    log_probs = torch.tensor([[-INF, -2.0, 0.0], [-3.0, -INF, -INF]])
    assert sample_categorical(log_probs, generator=torch.Generator()).tolist() == [2, 0]


def test_moved_weights_can_drop_a_sampled_token():
    before = torch.tensor([[0.6, 0.3, 0.1]], dtype=F64).log()
    moved = torch.tensor([[0.2, 0.3, 0.5]], dtype=F64).log().requires_grad_()
    actions = torch.tensor([0])
    kept = kept_choices(before, top_k=2)
    assert float(action_logprobs(truncated_log_probs(before, top_k=2), actions)) == pytest.approx(math.log(0.6 / 0.9))
    afresh = action_logprobs(truncated_log_probs(moved, top_k=2), actions)
    stored = action_logprobs(truncated_log_probs(moved, kept=kept), actions)
    assert float(afresh.detach()) == -INF
    assert float(stored.detach()) == pytest.approx(math.log(0.2 / 0.5), abs=1e-14)  # renormalised over choices 0 and 1
    (gradient,) = torch.autograd.grad(stored.sum(), moved)
    # one-hot minus p over the stored set: (1 - 0.4, -0.6, 0)
    torch.testing.assert_close(gradient, torch.tensor([[0.6, -0.6, 0.0]], dtype=F64), atol=1e-14, rtol=0)


def test_gradients_by_finite_differences():
    logits = torch.randn(3, 6, dtype=F64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    kept = kept_choices(logits, top_k=4, top_p=0.9)
    actions = kept.to(torch.int64).argmax(-1)
    assert torch.autograd.gradcheck(
        lambda z: action_logprobs(truncated_log_probs(z, temperature=0.7, kept=kept), actions), logits
    )
    assert torch.autograd.gradcheck(lambda z: entropy_of(truncated_log_probs(z, temperature=0.7, kept=kept)), logits)


test_refuses = refuses(
    ({"top_k": 0}, "top_k must be at least 1, got 0"),
    ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
    ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
    ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ({"is_allowed": SHORT}, "row 1 must allow at least 1 choices, got 0"),
    ({"kept": SHORT}, "row 1 must allow at least 1 choices, got 0"),
    ({"kept": SHORT, "top_k": 1}, "kept must come alone, got top_k = 1, .* and no mask"),
    ({"kept": SHORT, "is_allowed": SHORT}, "kept must come alone, got top_k = None, top_p = None and is_allowed"),
    by=partial(truncated_log_probs, torch.zeros(2, 2)),
)
