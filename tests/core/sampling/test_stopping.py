import math
from itertools import permutations

import pytest
import torch
from refusals import refuses
from scipy.stats import chisquare

from grpo_pipeline.core.sampling.stopping import decisions_taken, greedy_with_stop, logprobs_with_stop, sample_with_stop

F64, INF = torch.float64, math.inf
V, K = 4, 3
LOGITS = torch.tensor([[0.3, -1.2, 1.5, 0.0], [2.0, 0.1, -0.3, 0.9], [-0.2, 0.4, 1.1, 0.0]], dtype=F64)
STOPS = torch.tensor([[0.2, -0.4, 0.9], [1.0, 0.3, -0.5], [0.0, 0.6, -0.2]], dtype=F64)
ALLOWED = torch.tensor([[True] * 4, [True, True, False, True], [True, False, True, False]])
# Every row of actions: 0..K distinct cells, then stops (the action V) to the end.
OUTCOMES = torch.tensor([[*chosen, *[V] * (K - count)] for count in range(K + 1) for chosen in permutations(range(V), count)])


def naive_logprobs(z, s, allowed, actions, k_min):
    """One decision at a time with Python's float sums; stops after the first stop count 0."""
    left, result = {v: x for v, x in enumerate(z) if allowed[v]}, []
    for i, action in enumerate(actions):
        if V in actions[:i]:
            result.append(0.0)
            continue
        options = left | ({V: s[i]} if i >= k_min or not left else {})
        result.append(options.get(action, -INF) - math.log(math.fsum(math.exp(option) for option in options.values())))
        left.pop(action, None)
    return result


def naive(rows, k_min, temperature):
    data = zip((LOGITS / temperature).tolist(), (STOPS / temperature).tolist(), ALLOWED.tolist(), strict=True)
    found = [[naive_logprobs(*row, taken, k_min) for taken in OUTCOMES.tolist()] for row in list(data)[:rows]]
    return torch.tensor(found, dtype=F64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("k_min", [0, 1, 2, 3])
def test_every_outcome_of_each_row_agrees_with_a_naive_loop_and_all_sum_to_one(k_min, temperature):
    """In the last row two cells are left: it stops for certain when none is; what cannot be drawn has probability zero."""
    rows = 2 if k_min == 3 else 3
    data = LOGITS[:rows], STOPS[:rows], OUTCOMES.expand(rows, -1, -1)
    got = logprobs_with_stop(*data, k_min=k_min, temperature=temperature, is_allowed=ALLOWED[:rows])
    want = naive(rows, k_min, temperature)
    is_possible = want.sum(-1) > -INF
    torch.testing.assert_close(got[is_possible], want[is_possible], atol=1e-13, rtol=0)
    assert bool((got[~is_possible].sum(-1) == -INF).all())
    torch.testing.assert_close(got.sum(-1).exp().sum(-1), torch.ones(rows, dtype=F64), atol=1e-12, rtol=0)


def test_a_row_with_fewer_cells_than_k_max_stops_for_certain_when_none_is_left():
    taken = torch.tensor([[[0, 2, V], [2, 0, V]]])
    assert not logprobs_with_stop(LOGITS[2:], STOPS[2:], taken, is_allowed=ALLOWED[2:])[0, :, 2].any()


@pytest.mark.parametrize("k_min", [0, 1, 2])
def test_draws_follow_the_likelihood_of_their_row(k_min):
    n, names = 40_000, {"k_min": k_min, "is_allowed": ALLOWED}
    generator = torch.Generator().manual_seed(11)
    drawn, is_valid = sample_with_stop(LOGITS, STOPS, K, n, generator=generator, temperature=0.8, **names)
    assert torch.equal(is_valid, decisions_taken(drawn, V))
    base = torch.tensor([(V + 1) ** 2, V + 1, 1])
    for temperature in (0.8, 1.0):
        for row, probabilities in zip(drawn, naive(3, k_min, temperature).sum(-1).exp(), strict=True):
            counts = torch.bincount((row * base).sum(-1), minlength=(V + 1) ** 3)[(OUTCOMES * base).sum(-1)]
            assert int(counts[probabilities > 0].sum()) == n  # nothing but what is possible is ever drawn
            found = [x[probabilities > 0].numpy() for x in (counts, n * probabilities)]
            pvalue = chisquare(*found).pvalue
            assert pvalue > 0.01 if temperature == 0.8 else pvalue < 1e-4  # the test has power


def test_gradients_by_finite_differences():
    logits, stops = LOGITS.clone().requires_grad_(), STOPS.clone().requires_grad_()
    actions = torch.tensor([[[1, V, V], [3, 0, 1]], [[0, V, V], [1, 3, V]], [[2, V, V], [0, 2, V]]])

    def score(z, s):
        return logprobs_with_stop(z, s, actions, temperature=0.7, is_allowed=ALLOWED)

    assert torch.autograd.gradcheck(score, (logits, stops))
    # One stop logit per row serves every decision.
    one = torch.tensor([0.4, -0.2, 0.1], dtype=F64, requires_grad=True)
    assert torch.equal(score(logits, one), score(logits, one[:, None].expand(3, K)))
    assert torch.autograd.gradcheck(lambda s: score(logits.detach(), s), one)


def sample(k_max, k_min=1, stops=3, allowed=None, **options):
    allowed, stop_logits = ONE_SHORT_ROW if allowed is None else allowed, torch.zeros(2, stops)
    stop_logits = stop_logits[:, 0] if stops == 3 else stop_logits
    return sample_with_stop(
        torch.zeros(2, 3), stop_logits, k_max, 2, k_min=k_min, generator=torch.Generator(), is_allowed=allowed, **options
    )


ONE = LOGITS[:1], STOPS[:1]
ONE_SHORT_ROW = torch.tensor([[True, True, True], [True, False, False]])


test_refuses = refuses(
    (lambda: sample(4), "k_max <= 3"),
    (lambda: sample(0, 0), "got 0 and 0"),
    (lambda: sample(1, 2), "got 2 and 1"),
    (lambda: sample(3, stops=2), r"stop_logits must have the shape \(2,\) or \(2, 3\), got \(2, 2\)"),
    (lambda: sample(3, 2), "row 1 must allow at least 2 choices, got 1"),
    (lambda: sample(2, 0, allowed=~ONE_SHORT_ROW), "row 0 must allow at least 1 choices, got 0"),
    (lambda: sample(2, temperature=0.0), "temperature must be above 0, got 0.0"),
    (lambda: logprobs_with_stop(*ONE, torch.tensor([[[0, 1, 2], [2, 2, V]]]), is_allowed=ALLOWED[:1]),
     r"got \[2, 2, 4\] in row 0, sample 1"),
    (lambda: logprobs_with_stop(*ONE, torch.tensor([[[0, V, 2]]]), is_allowed=ALLOWED[:1]),
     r"nothing but the stop after a stop, got \[0, 4, 2\] in row 0, sample 0"),
)  # fmt: skip


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
def test_greedy_takes_the_likelier_way_at_each_decision_while_cells_are_left(k_min):
    generator = torch.Generator().manual_seed(3)
    logits, stops = (2 * torch.randn(200, size, dtype=F64, generator=generator) for size in (6, 4))
    actions, is_valid = greedy_with_stop(logits, stops, 4, k_min=k_min, is_allowed=torch.ones(200, 6, dtype=torch.bool))
    want = [naive_greedy(z, s, 4, k_min) for z, s in zip(logits.tolist(), stops.tolist(), strict=True)]
    assert actions[:, 0].tolist() == want
    assert torch.equal(is_valid, decisions_taken(actions, 6))
    assert {sum(a < 6 for a in row) for row in want} == set(range(k_min, 5))  # every length occurs
    assert greedy_with_stop(LOGITS, STOPS - 50, K, is_allowed=ALLOWED)[0].tolist() == [[[2, 0, 3]], [[0, 3, 1]], [[2, 0, V]]]


def test_greedy_goes_on_where_stop_and_cells_are_equally_likely():
    """The stop needs more than half: its logit is exactly the logarithm of what is left."""
    one = torch.tensor([[0.0], [0.0], [0.0]], dtype=F64)
    stops = torch.tensor([0.0, 1e-9, -1e-9], dtype=F64)
    actions, is_valid = greedy_with_stop(one, stops, 1, k_min=0, is_allowed=torch.ones(3, 1, dtype=torch.bool))
    assert actions[:, 0, 0].tolist() == [0, 1, 0]
    assert bool(is_valid.all())
