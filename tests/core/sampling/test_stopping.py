import math
from functools import partial
from itertools import permutations, product

import pytest
import torch
from scipy.stats import chisquare

from grpo_pipeline.core.sampling.stopping import decisions_taken, greedy_with_stop, logprobs_with_stop, sample_with_stop

F64 = torch.float64
V, K = 4, 3
LOGITS = torch.tensor([[0.3, -1.2, 1.5, 0.0]], dtype=F64)
STOPS = torch.tensor([[0.2, -0.4, 0.9]], dtype=F64)
ALL = torch.ones(1, V, dtype=torch.bool)


def outcomes(k_min, cells=V, k_max=K):
    """Every possible row of actions: 0..k_max distinct cells, then stops (the action ``V``) to the end."""
    return [
        [*chosen, *[V] * (k_max - count)]
        for count in range(k_min, min(k_max, cells) + 1)
        for chosen in permutations(range(cells), count)
    ]


def naive_logprobs(z, s, actions, k_min):
    """One decision at a time with Python's float sums; stops after the first stop count 0."""
    left, result = dict(enumerate(z)), []
    for i, action in enumerate(actions):
        if V in actions[:i]:
            result.append(0.0)
            continue
        options = [*left.values()] + ([s[i]] if i >= k_min else [])
        total = math.log(math.fsum(math.exp(option) for option in options))
        result.append((s[i] if action == V else left.pop(action)) - total)
    return result


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("k_min", [0, 1, 2, 3])
def test_every_outcome_agrees_with_a_naive_loop_and_all_sum_to_one(k_min, temperature):
    actions = outcomes(k_min)
    score = partial(logprobs_with_stop, LOGITS, STOPS, temperature=temperature)
    got = score(torch.tensor([actions]), k_min=k_min, is_allowed=ALL)
    z, s = (LOGITS[0] / temperature).tolist(), (STOPS[0] / temperature).tolist()
    want = [naive_logprobs(z, s, row, k_min) for row in actions]
    torch.testing.assert_close(got[0], torch.tensor(want, dtype=F64), atol=1e-13, rtol=0)
    assert float(got.sum(-1).exp().sum()) == pytest.approx(1.0, abs=1e-12)
    # What cannot be drawn, a stop too early or a choice that is not allowed, has probability zero.
    too_early, not_allowed = torch.tensor([[[0, V, V]]]), torch.tensor([[[0, 3, V]]])
    assert score(too_early, k_min=2, is_allowed=ALL)[0, 0, 1] == -math.inf
    assert score(not_allowed, is_allowed=ALL & (torch.arange(V) < 3))[0, 0, 1] == -math.inf


def test_a_row_with_fewer_cells_than_k_max_stops_for_certain_when_none_is_left():
    allowed = torch.tensor([[True, True, False, False]])
    actions = torch.tensor([outcomes(1, cells=2)])
    logits, stops = LOGITS.clone().requires_grad_(), STOPS.clone().requires_grad_()
    logprobs = logprobs_with_stop(logits, stops, actions, is_allowed=allowed)
    assert float(logprobs.detach().sum(-1).exp().sum()) == pytest.approx(1.0, abs=1e-12)
    both = (actions[0, :, 1] < V).nonzero()[:, 0]
    assert logprobs[0, both, 2].tolist() == [0.0, 0.0]
    logprobs.sum().backward()
    assert bool(logits.grad.isfinite().all() and stops.grad.isfinite().all())
    assert torch.count_nonzero(logits.grad[~allowed]) == 0
    drawn, _ = sample_with_stop(LOGITS, STOPS, K, 200, generator=torch.Generator().manual_seed(0), is_allowed=allowed)
    assert {tuple(row) for row in drawn[0].tolist()} == {tuple(row) for row in outcomes(1, cells=2)}


@pytest.mark.parametrize("k_min", [0, 1, 2])
def test_draws_follow_the_likelihood(k_min):
    n, names = 40_000, {"k_min": k_min, "is_allowed": ALL}
    generator = torch.Generator().manual_seed(11)
    drawn, is_valid = sample_with_stop(LOGITS, STOPS, K, n, generator=generator, temperature=0.8, **names)
    rows, base = torch.tensor(outcomes(k_min)), torch.tensor([(V + 1) ** 2, V + 1, 1])
    counts = torch.bincount((drawn[0] * base).sum(-1), minlength=(V + 1) ** 3)[(rows * base).sum(-1)]
    assert int(counts.sum()) == n  # nothing but the outcomes listed is ever drawn
    assert torch.equal(is_valid, decisions_taken(drawn, V))
    for temperature in (0.8, 1.0):
        logprobs = logprobs_with_stop(LOGITS, STOPS, rows[None], temperature=temperature, **names)
        pvalue = chisquare(counts.numpy(), (n * logprobs.sum(-1).exp()[0]).numpy()).pvalue
        assert pvalue > 0.01 if temperature == 0.8 else pvalue < 1e-6  # the test has power


def test_rows_and_samples_do_not_touch_each_other():
    generator = torch.Generator().manual_seed(2)
    logits, stops = torch.randn(5, 9, dtype=F64, generator=generator), torch.randn(5, 4, dtype=F64, generator=generator)
    allowed = torch.rand(5, 9, generator=generator) < 0.7
    allowed[:, :2] = True
    actions, _ = sample_with_stop(logits, stops, 4, 6, k_min=2, generator=generator, is_allowed=allowed)
    together = logprobs_with_stop(logits, stops, actions, k_min=2, is_allowed=allowed)
    for p, g in product(range(5), range(6)):
        row = [p]
        alone = logprobs_with_stop(logits[row], stops[row], actions[row, g : g + 1], k_min=2, is_allowed=allowed[row])
        torch.testing.assert_close(together[p, g], alone[0, 0], atol=1e-14, rtol=0)


def test_gradients_by_finite_differences():
    logits = torch.randn(2, V, dtype=F64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    stops = torch.randn(2, K, dtype=F64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    allowed = torch.tensor([[True] * 4, [True, True, True, False]])
    actions = torch.tensor([[[2, 0, 1], [1, V, V], [3, 2, V]], [[2, 0, 1], [0, V, V], [1, 2, V]]])

    def score(z, s):
        return logprobs_with_stop(z, s, actions, temperature=0.7, is_allowed=allowed)

    assert torch.autograd.gradcheck(score, (logits, stops))
    # One stop logit per row serves every decision.
    one = torch.tensor([0.4, -0.2], dtype=F64, requires_grad=True)
    assert torch.equal(score(logits, one), score(logits, one[:, None].expand(2, K)))
    assert torch.autograd.gradcheck(lambda s: score(logits.detach(), s), one)


def sample(k_max, k_min=1, stops=3, allowed=None, **options):
    allowed, stop_logits = ONE_SHORT_ROW if allowed is None else allowed, torch.zeros(2, stops)
    stop_logits = stop_logits[:, 0] if stops == 3 else stop_logits
    return sample_with_stop(
        torch.zeros(2, 3), stop_logits, k_max, 2, k_min=k_min, generator=torch.Generator(), is_allowed=allowed, **options
    )


ONE_SHORT_ROW = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample(4), "k_max <= 3"),
        (lambda: sample(0, 0), "got 0 and 0"),
        (lambda: sample(1, 2), "got 2 and 1"),
        (lambda: sample(3, stops=2), r"stop_logits must have the shape \(2,\) or \(2, 3\), got \(2, 2\)"),
        (lambda: sample(3, 2), "row 1 must allow at least 2 choices, got 1"),
        (lambda: sample(2, 0, allowed=~ONE_SHORT_ROW), "row 0 must allow at least 1 choices, got 0"),
        (lambda: sample(2, temperature=0.0), "temperature must be above 0, got 0.0"),
        (lambda: logprobs_with_stop(LOGITS, STOPS, torch.tensor([[[0, 1, 2], [2, 2, V]]]), is_allowed=ALL),
         r"got \[2, 2, 4\] in row 0, sample 1"),
        (lambda: logprobs_with_stop(LOGITS, STOPS, torch.tensor([[[0, V, 2]]]), is_allowed=ALL),
         r"nothing but the stop after a stop, got \[0, 4, 2\] in row 0, sample 0"),
    ],
)  # fmt: skip
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def naive_greedy(z, s, k_max, k_min):
    """Stop where the stop has more than half of the probability; else take the best cell left."""
    left, taken = dict(enumerate(z)), []
    for i in range(k_max):
        odds = math.exp(s[i]) / math.fsum(math.exp(x) for x in left.values()) if left else math.inf
        if i >= k_min and odds > 1:
            break
        best = max(left, key=left.get)
        taken.append(best)
        del left[best]
    return taken + [len(z)] * (k_max - len(taken))


@pytest.mark.parametrize("k_min", [0, 1, 2])
def test_greedy_takes_the_likelier_way_at_each_decision_and_stops_where_no_cell_is_left(k_min):
    generator = torch.Generator().manual_seed(3)
    logits, stops = (2 * torch.randn(200, size, dtype=F64, generator=generator) for size in (6, 4))
    actions, is_valid = greedy_with_stop(logits, stops, 4, k_min=k_min, is_allowed=torch.ones(200, 6, dtype=torch.bool))
    want = [naive_greedy(z, s, 4, k_min) for z, s in zip(logits.tolist(), stops.tolist(), strict=True)]
    assert actions[:, 0].tolist() == want
    assert torch.equal(is_valid, decisions_taken(actions, 6))
    assert {sum(a < 6 for a in row) for row in want} == set(range(k_min, 5))  # every length occurs
    allowed = torch.tensor([[True, True, False, False]])
    assert greedy_with_stop(LOGITS, STOPS - 50, K, is_allowed=allowed)[0].tolist() == [[[0, 1, V]]]
