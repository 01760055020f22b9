import math
from itertools import pairwise, product
from typing import get_args

import numpy as np
import pytest
import torch
from refusals import refuses
from surrogates import surrogate
from torch.nn.functional import one_hot

from grpo_pipeline.core.credit import Credit, credit_decisions, credit_turns, kept_decisions
from grpo_pipeline.core.policy_gradient.advantage_changes import apply_prompt_weights, keep_top
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.decision_advantages import decision_advantages
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.rewards import apply_failure_rule, combine_rewards, subtract_kl
from grpo_pipeline.core.types import Advantages, Rewards, Rollouts

F64 = torch.float64


def test_parts_are_weighed_in_float64_and_only_a_weighted_nan_excludes_a_sample():
    components = {"heat": torch.tensor([[-0.2, -0.4, math.nan]]), "class": torch.tensor([[-1.0, -3.0, 0.0]])}
    rewards = combine_rewards(components | {"free": torch.full((1, 3), math.nan)}, {"heat": 0.7, "class": 0.3, "free": 0.0})
    # 0.7 * -0.2 + 0.3 * -1 = -0.44;  0.7 * -0.4 + 0.3 * -3 = -1.18
    want = torch.tensor([[-0.44, -1.18, math.nan]], dtype=F64)
    torch.testing.assert_close(rewards.total, want, atol=1e-7, rtol=0, equal_nan=True)
    assert rewards.components["heat"] is components["heat"]
    assert dict(rewards.weights) == {"heat": 0.7, "class": 0.3, "free": 0.0}


@pytest.mark.parametrize(("rule", "penalty", "paid"), [("exclude", 0.0, math.nan), ("penalty", -5.0, -5.0)])
def test_a_failed_sample_is_left_out_or_pays_a_penalty(rule, penalty, paid):
    # The failed samples' own rewards are not read, whatever they are.
    total = torch.tensor([[1.0, 3.0, -math.inf], [2.0, math.nan, 4.0]])
    found = apply_failure_rule(total, torch.tensor([[False, False, True]] * 2), rule=rule, penalty=penalty)
    want = torch.tensor([[1.0, 3.0, paid], [2.0, math.nan, paid]], dtype=F64)
    torch.testing.assert_close(found, want, atol=0, rtol=0, equal_nan=True)


def test_kl_is_summed_over_valid_decisions_and_charged():
    total = torch.tensor([[1.0, math.nan, 2.0]])
    kl = torch.tensor([[[0.5, 0.25, math.nan], [1.0, 1.0, 1.0], [math.inf, math.nan, math.nan]]], requires_grad=True)
    is_valid = torch.tensor([[[True, True, False], [True, True, True], [False, False, False]]])
    # 1 - 2 * (0.5 + 0.25) = -0.5;  not scored stays so;  no decision, no charge
    for weight, want, penalty in [(2.0, -0.5, [1.5, 6.0, 0.0]), (0.0, 1.0, [0.0, 0.0, 0.0])]:
        got = subtract_kl(Rewards({}, total), kl, is_valid, weight=weight)
        charged = torch.tensor([[want, math.nan, 2.0]], dtype=F64)
        torch.testing.assert_close(got.total, charged, atol=0, rtol=0, equal_nan=True)
        assert got.kl_penalty.tolist() == [penalty]
        assert not (got.total + got.kl_penalty).requires_grad


ONES, FLAGS = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
PART, KL, VALID = {"a": ONES}, torch.ones(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)


def fail(total=ONES, is_failed=FLAGS, **options):
    return apply_failure_rule(total, is_failed, **({"rule": "penalty"} | options))


def charge(total=ONES, kl=KL, is_valid=VALID, weight=1.0):
    return subtract_kl(Rewards({}, total), kl, is_valid, weight=weight)


test_refuses = refuses(
    (lambda: combine_rewards(PART, {"b": 1.0}), r"must name the components \['a'\], got \['b'\]"),
    (lambda: combine_rewards({"a": torch.ones(1, 2, requires_grad=True)}, {"a": 1.0}), r"no gradient, got one in \['a'\]"),
    (lambda: combine_rewards(PART, {"a": 0.0}), "some reward weight must be positive"),
    (lambda: combine_rewards({}, {}), "some reward weight must be positive, got {}"),
    (lambda: combine_rewards(PART | {"b": ONES}, {"a": 2.0, "b": -1.0}), "of 'b' must be finite and >= 0, got -1.0"),
    (lambda: combine_rewards(PART, {"a": math.inf}), "weight of 'a' must be finite and >= 0, got inf"),
    (lambda: combine_rewards({"a": ONES[0]}, {"a": 1.0}), r"must share one shape \[P, G\], got {'a': \[2\]}"),
    (lambda: combine_rewards(PART | {"b": ONES[:, :1]}, {"a": 1.0, "b": 1.0}), r"must share one shape \[P, G\]"),
    (lambda: combine_rewards({"a": torch.tensor([[0.0], [-math.inf]])}, {"a": 1.0}), "'a' must be finite or NaN .* prompt 1"),
    (lambda: fail(ONES[0], FLAGS[0]), r"total must have shape \[P, G\], got \[2\]"),
    (lambda: fail(is_failed=ONES), r"is_failed must be bool \[1, 2\], got torch.float32"),
    (lambda: fail(is_failed=FLAGS[:, :1]), r"is_failed must be bool \[1, 2\], got torch.bool \[1, 1\]"),
    (lambda: fail(rule="drop"), "'exclude' or 'penalty', got 'drop'"),
    (lambda: fail(penalty=-math.inf), "penalty must be finite, got -inf"),
    (lambda: fail(penalty=math.nan), "penalty must be finite, got nan"),
    (lambda: fail(rule="exclude", penalty=-1.0), "penalty must be 0 for rule 'exclude', got -1.0"),
    (lambda: fail(-ONES / 0, ~FLAGS), "total must be finite or NaN .* prompt 0"),
    (lambda: charge(ONES[0], KL[0], VALID[0]), r"total must have shape \[P, G\]"),
    (lambda: charge(kl=KL[..., 0], is_valid=VALID[..., 0]), r"must have shape \[P, G, L\]"),
    (lambda: charge(is_valid=VALID[..., :1]), r"got \[1, 2, 3\] and torch.bool"),
    (lambda: charge(is_valid=KL), "torch.float32"),
    (lambda: charge(weight=-0.1), "KL weight must be .* got -0.1"),
    (lambda: charge(weight=math.inf), "KL weight must be .* got inf"),
    (lambda: charge(ONES / 0), "infinite one"),
    (lambda: charge(kl=torch.tensor([[[0.0, -math.inf, 0.0]] * 2])), r"finite where valid, got -inf at \[0, 0, 1\]"),
)


# Credit of single decisions: exact expectations over all samples, and plain loops.

CELLS, DRAWS = 5, ("without_replacement", "with_replacement", "with_stop", "one")
UNBIASED = {("marginal_to_go", draw) for draw in DRAWS} | {(credit, "one") for credit in get_args(Credit)}
UNBIASED |= {("leave_one_out", "with_replacement")}  # decisions that know nothing of each other


def every_sample(draw):
    """Return all samples of a distribution as rows [N, 1, L]; CELLS is the stop."""
    length, choices = {"one": 1}.get(draw, 3), CELLS + (draw == "with_stop")
    is_open = draw == "with_replacement"
    rows = [s for s in product(range(choices), repeat=length) if is_open or len(set(s) - {CELLS}) == sum(c < CELLS for c in s)]
    actions = torch.tensor([s for s in rows if all(a < CELLS or b == CELLS for a, b in pairwise(s))])[:, None]
    stops = (actions == CELLS).long()
    return Rollouts(actions, torch.empty(0), stops.cumsum(-1) - stops == 0)


def logprobs_of(z, samples, draw):
    """Return log P of each decision given those before it, [N, 1, L]: a softmax over what is left; z [CELLS + 1]."""
    found, left = [], torch.ones(len(samples.actions), CELLS + 1, dtype=torch.bool)
    left[:, CELLS] = draw == "with_stop"
    for a in samples.actions[:, 0].T:
        found.append(z.masked_fill(~left, -torch.inf).log_softmax(-1).gather(1, a[:, None]))
        taken = torch.zeros_like(left).scatter(1, a[:, None], value=True)
        left = left if draw == "with_replacement" else left & (~taken | (torch.arange(CELLS + 1) == CELLS))
    return torch.stack(found, -1).masked_fill(~samples.is_valid, 0.0)


def earned(samples, kept):
    """Return the rewards [..., M] of parts of samples: a number of its own for each set of cells, whatever their order."""
    is_point = samples.is_valid & (samples.actions < CELLS)
    cells = one_hot(samples.actions, CELLS + 1)[..., None, :, :CELLS] * (is_point[..., None, :] & kept)[..., None]
    codes = (cells.sum(-2) * 4 ** torch.arange(CELLS)).sum(-1)  # [..., M, L, CELLS] -> [..., M]
    return torch.randn(4**CELLS, dtype=F64, generator=torch.Generator().manual_seed(1))[codes]


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("credit", ["set", *get_args(Credit)])
@pytest.mark.parametrize(("method", "share"), [("leave_one_out", 1.0), ("mean_only", 0.5)])
def test_credit_is_unbiased_where_it_is_said_to_be(credit, draw, method, share):
    """Every group of two, weighed by its probability, through credit, advantage and surrogate. Known: docs/algorithms.md."""
    samples = every_sample(draw)
    z = torch.randn(CELLS + 1, dtype=F64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    logprobs, n, length = logprobs_of(z, samples, draw), len(samples.actions), samples.actions.shape[-1]
    chance = logprobs.sum((1, 2)).exp()
    assert float(chance.detach().sum()) == pytest.approx(1)
    total = earned(samples, torch.ones(1, length, dtype=torch.bool))[..., 0]  # [N, 1]
    (want,) = torch.autograd.grad((chance * total[:, 0]).sum(), z, retain_graph=True)
    first, second = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    pairs = torch.stack([first.flatten(), second.flatten()], 1)  # [N * N, 2]
    logprobs, is_valid, total = logprobs[:, 0][pairs], samples.is_valid[:, 0][pairs], total[:, 0][pairs]
    if credit == "set":
        advantages = compute_advantages(total, method=method, eps=0.0, tie_tolerance=0.0)
    else:
        of_subsets = earned(samples, kept_decisions(credit, length))[:, 0][pairs]
        credits = credit_decisions(Rewards({}, total), of_subsets, is_valid, credit=credit).credits
        advantages = decision_advantages(credits, method=method, eps=0.0, tie_tolerance=0.0)
    advantages = apply_prompt_weights(advantages, chance.detach()[pairs].prod(1))
    given = logprobs, logprobs.detach(), advantages.values, is_valid, surrogate(reduction="per_decision")
    loss = policy_loss(*given, denominator=2.0)  # two samples a group
    (got,) = torch.autograd.grad(-loss, z)
    error = float((got - share * want).abs().max())
    is_unbiased = credit == "set" or (credit, draw) in UNBIASED
    assert error < 1e-12 if is_unbiased else error > 0.02, error


# Two turns of two choices; after each first one something else is told. Tokens [a, told..., b], or [a] where it ends.
TALKS = {
    "unequal": [((0, -1, 0), (0, 0)), ((0, -1, 1), (0, 1)), ((1, -1, -1, 0), (1, 0)), ((1, -1, -1, 1), (1, 1))],
    "one ends": [((0, -1, 0), (0, 0)), ((0, -1, 1), (0, 1)), ((1,), (1,))],
}


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize(("method", "share"), [("leave_one_out", 1.0), ("mean_only", 2 / 3)])
def test_credit_of_turns_has_the_gradient_of_the_reward(talk, method, share):
    """Every group of three conversations, weighed by its probability; each turn is paid, and so is the whole."""
    generator = torch.Generator().manual_seed(5)
    # Of the first turn, and of the second after each first one.
    z = torch.randn(3, 2, dtype=F64, generator=generator).requires_grad_()
    first_paid, second_paid, of_whole = (torch.randn(2, 2, dtype=F64, generator=generator) for _ in range(3))
    log_p, length = z.log_softmax(-1), max(len(tokens) for tokens, _ in TALKS[talk])
    logprobs, turns, total, before = [], [], [], []
    for tokens, (a, *rest) in TALKS[talk]:
        each, turn = [log_p[0, a]], [0]
        for token in (*tokens[1:], *[-1] * (length - len(tokens))):
            each.append(log_p[1 + a, token] if token >= 0 else torch.zeros((), dtype=F64))
            turn.append(1 if token >= 0 else -1)
        logprobs.append(torch.stack(each))
        turns.append(turn)
        total.append(first_paid[a, 0] + (second_paid[a, rest[0]] + of_whole[a, rest[0]] if rest else of_whole[a, 0]))
        before.append([0.0, float(first_paid[a, 0])])
    logprobs, total = torch.stack(logprobs), torch.stack(total)  # [N, L], [N]
    chance = logprobs.sum(1).exp()
    assert float(chance.detach().sum()) == pytest.approx(1)
    (want,) = torch.autograd.grad((chance * total).sum(), z, retain_graph=True)
    groups = torch.cartesian_prod(*[torch.arange(len(total))] * 3)  # [N ** 3, 3]
    turns = torch.tensor(turns)[groups]
    credited = credit_turns(Rewards({}, total[groups]), torch.tensor(before, dtype=F64)[groups], turns)
    advantages = decision_advantages(credited.credits, method=method, eps=0.0, tie_tolerance=0.0)
    weighed = apply_prompt_weights(advantages, chance.detach()[groups].prod(1))
    logprobs = logprobs[groups]
    given = logprobs, logprobs.detach(), weighed.values, turns >= 0, surrogate(reduction="per_decision")
    (got,) = torch.autograd.grad(-policy_loss(*given, denominator=3.0), z)
    torch.testing.assert_close(got, share * want, rtol=0, atol=1e-12)
    assert float(want.abs().amax()) > 0.1


def test_turns_are_credited_and_compared_as_plain_loops_say():
    """Of four samples one has one turn, one was not scored, and turns begin at unlike places."""
    total = torch.tensor([[1.0, 5.0, math.nan, 2.0]], dtype=F64, requires_grad=True)
    before = torch.tensor([[[0.0, 0.25], [0.0, 9.0], [0.0, 1.0], [0.0, -1.0]]], dtype=F64)
    turns = torch.tensor([[[0, 0, -1, 1], [0, -1, -1, -1], [0, 1, 1, 1], [0, -1, 1, 1]]])
    credits = credit_turns(Rewards({}, total), before, turns).credits
    assert not credits.values.requires_grad
    want = [[1.0, 0.75], [5.0, 0.0], [math.nan, math.nan], [2.0, 3.0]]
    np.testing.assert_array_equal(credits.values[0].numpy(), want)
    assert credits.is_valid[0].tolist() == [[True, True], [True, False], [True, True], [True, True]]
    found = decision_advantages(credits, method="mean_only")
    # Of the first turn the mean of 1, 5 and 2 is 8 / 3; of the second that of 0.75, 0 and 3 is 1.25.
    a, b = 8 / 3, 1.25
    by_hand = [[1 - a, 1 - a, 0, 0.75 - b], [5 - a, 0, 0, 0], [0] * 4, [2 - a, 0, 3 - b, 3 - b]]
    np.testing.assert_allclose(found.values[0].numpy(), by_hand, atol=1e-12)
    assert not found.is_tied.any()
    tied = credit_turns(Rewards({}, torch.ones(1, 4)), torch.zeros(1, 4, 2), torch.zeros(1, 4, 3, dtype=torch.long))
    assert decision_advantages(tied.credits).is_tied.all()
    with pytest.raises(ValueError, match=r"turns must have shapes .* total of \[1, 4\], got \[1, 3, 2\] and \[1, 4, 4\]"):
        credit_turns(Rewards({}, total), before[:, :3], turns)


def cosine_to_the_true_gradient(credit, seed):
    """Enumerate the mean gradient of credited decisions; every set of cells has a random reward of its own."""
    samples, generator = every_sample("without_replacement"), torch.Generator().manual_seed(seed)
    z = torch.randn(CELLS + 1, dtype=F64, generator=generator).requires_grad_()
    paid = torch.randn(2**CELLS, dtype=F64, generator=generator)
    cells = one_hot(samples.actions[:, 0], CELLS).double()  # [N, L, CELLS]
    of_parts = [
        paid[(kept.double() @ cells @ (2.0 ** torch.arange(CELLS).double())).long()] for kept in kept_decisions(credit, 3)
    ]
    logprobs = logprobs_of(z, samples, "without_replacement")[:, 0]  # [N, L]
    total = paid[(cells.sum(1) @ (2.0 ** torch.arange(CELLS).double())).long()]
    parts = torch.stack([*of_parts, total], -1)  # [N, L + 1]
    credits = parts.diff(dim=-1) if credit == "marginal" else total[:, None] - parts[:, :3]
    chance = logprobs.sum(1).exp()
    (true,) = torch.autograd.grad((chance * total).sum(), z, retain_graph=True)
    (mean,) = torch.autograd.grad((chance.detach()[:, None] * credits * logprobs).sum(), z)
    return float(torch.cosine_similarity(mean, true, dim=0))


def test_with_arbitrary_rewards_a_biased_credit_can_point_backwards():
    """docs/algorithms.md: the direction is kept by rewards that grow with the set, and by no promise for others."""
    found = {credit: [cosine_to_the_true_gradient(credit, seed) for seed in range(100)] for credit in get_args(Credit)}
    assert min(found["marginal_to_go"]) == pytest.approx(1.0, abs=1e-9)
    assert min(found["leave_one_out"]) < -0.8
    assert min(found["marginal"]) < -0.9


@pytest.mark.parametrize("credit", get_args(Credit))
def test_credit_and_its_advantages_agree_with_plain_loops(credit):
    """Three prompts of four samples; some have ended early, one was not scored, nor was a part of another."""
    generator = torch.Generator().manual_seed(0)
    total, parts = (torch.randn(shape, dtype=F64, generator=generator) for shape in ((3, 4), (3, 4, 3)))
    length = torch.tensor([[3, 1, 2, 3], [3, 3, 3, 1], [1, 1, 1, 1]])
    total[0, 0], parts[1, 1, 1], is_valid = math.nan, math.nan, torch.arange(3) < length[..., None]
    rewards = credit_decisions(Rewards({}, total.requires_grad_()), parts, is_valid, credit=credit)
    want, of_group = np.zeros((3, 4, 3)), np.zeros((3, 4, 3))
    for p, g, d in product(range(3), range(4), range(3)):
        first = [*parts[p, g].tolist(), total[p, g].item()]
        gain = first[d + 1] - first[d] if credit == "marginal" else first[3] - first[d]
        want[p, g, d] = math.nan if math.isnan(first[3]) else gain if d < length[p, g] else 0.0
    np.testing.assert_allclose(rewards.credits.values.numpy(), want, atol=1e-15)
    for p, d in product(range(3), range(3)):
        known = want[p, :, d][~np.isnan(want[p, :, d])]
        for g in range(4):
            if d < length[p, g] and not math.isnan(want[p, g, d]):
                of_group[p, g, d] = (want[p, g, d] - known.mean()) / (known.std(ddof=1) + 0.1)
    found = decision_advantages(rewards.credits, eps=0.1)
    np.testing.assert_allclose(found.values.numpy(), of_group, atol=1e-12)
    assert not found.values.requires_grad
    assert not found.is_tied.any()
    tied = credit_decisions(Rewards({}, torch.ones(3, 4)), torch.ones(3, 4, 3), is_valid, credit=credit)
    assert decision_advantages(tied.credits).is_tied.all()
    best = keep_top(Advantages(found.values, found.is_tied), total, ratio=0.25)
    is_best = total.nan_to_num(-9) == total.nan_to_num(-9).amax(1, keepdim=True)
    torch.testing.assert_close(best.values, found.values * is_best[..., None], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("components", "weights", "said"),
    [
        ({"f1": [0.5, 1.0], "own": [math.inf, 0.0]}, {"f1": 1.0, "own": 0.5}, "reward component 'own' must be finite"),
        # 1e308 * 10 is beyond float64, and so is 1e308 + 1e308.
        ({"f1": [0.5, 1.0], "own": [1e308, 0.0]}, {"f1": 1.0, "own": 10.0}, "reward component 'own' must be finite"),
        ({"f1": [1e308, 1.0], "own": [1e308, 0.0]}, {"f1": 1.0, "own": 1.0}, r"sum of the reward components \['f1', 'own'\]"),
    ],
)
def test_an_infinite_reward_names_its_component(components, weights, said):
    given = {name: torch.tensor([values], dtype=torch.float64) for name, values in components.items()}
    with pytest.raises(ValueError, match=said):
        combine_rewards(given, weights)
