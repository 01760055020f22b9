import math
from functools import partial
from itertools import product

import pytest
import torch
from refusals import refuses
from surrogates import surrogate

from grpo_pipeline.core.policy_gradient.hybrid_loss import NonFiniteLossError, check_finite, hybrid_loss
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.ratios import bounded_ratio, importance_ratio
from grpo_pipeline.core.policy_gradient.value_loss import explained_variance, value_loss

F64 = torch.float64
FREE = ("reinforce", "ppo", "grpo", "cispo", "sapo")
ALL_REDUCTIONS = ("per_sequence", "per_sequence_sum", "per_decision", "constant", "per_decision_local")
REQUIRED_REDUCTION = {"dr_grpo": "constant", "dapo": "per_decision", "bnpo": "per_decision_local"}
COMBINATIONS = [
    *product(FREE, ("decision", "joint"), ALL_REDUCTIONS),
    *((name, level, reduction) for name, reduction in REQUIRED_REDUCTION.items() for level in ("decision", "joint")),
    *(("gspo", "sequence", reduction) for reduction in ALL_REDUCTIONS),
    ("luspo", "sequence", "per_sequence_sum"),
    *(("gmpo", "sequence", reduction) for reduction in ALL_REDUCTIONS),
    *(("vespo", "joint", reduction) for reduction in ALL_REDUCTIONS),
]
RATIO_BASED = [combination for combination in COMBINATIONS if combination[0] != "reinforce"]
# The bounds are tight, so that each of them is active somewhere in the example.
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
BOUNDED = {"plain": CLIPS, "delta": CLIPS | {"delta": 1.35}, "dual_clip": CLIPS | {"dual_clip": 1.1}}
OPTIONS = {
    "reinforce": {"plain": {}},
    "cispo": {"plain": {"ratio_cap": 1.1}},
    "sapo": {"plain": {}},
    "gmpo": {"plain": {"clip_low": 0.1, "clip_high": 0.15}},
    "vespo": {"plain": {}},
}


def example(seed=0, p=3, g=4, length=5, spread=0.3):
    """Log-probs, old log-probs (-inf where invalid), advantages (one is 0) and a mask with one row that is wholly invalid."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(p, g, length, dtype=F64, generator=generator) - 2
    new = old + spread * torch.randn(p, g, length, dtype=F64, generator=generator)
    advantages = torch.randn(p, g, dtype=F64, generator=generator)
    advantages[-1, -1] = 0.0
    is_valid = torch.rand(p, g, length, generator=generator) < 0.7
    is_valid[0, 1] = False
    return new.masked_fill(~is_valid, -math.inf), old.masked_fill(~is_valid, -math.inf), advantages, is_valid


def naive_unit(algorithm, logprob, ratio, a, options):
    """The table of formulas, one unit, in Python floats."""
    if algorithm == "reinforce":
        return -a * logprob
    if algorithm == "cispo":
        return -min(ratio, options["ratio_cap"]) * a * logprob
    if algorithm == "gmpo":
        return -a * ratio
    if algorithm == "vespo":
        k, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        return -a * logprob * ratio**k * math.exp(rate * (1 - ratio))
    if algorithm == "sapo":
        tau = 1.0 if a > 0 else 1.05
        return -a * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
    free = min(ratio, options.get("delta", math.inf))
    objective = min(free * a, min(max(ratio, 1 - options["clip_low"]), 1 + options["clip_high"]) * a)
    if "dual_clip" in options and a < 0:
        objective = max(objective, options["dual_clip"] * a)
    return -objective


def naive_policy_loss(new, old, advantages, is_valid, *, algorithm, level, reduction, options, weight_at=None):
    """One row and one unit at a time; ``weight_at`` holds the log-probs at which cispo's weights stay."""
    rows = []
    for p, g in product(range(new.shape[0]), range(new.shape[1])):
        picked = [i for i in range(new.shape[2]) if is_valid[p, g, i]]
        now, old_row = ([float(x[p, g, i]) for i in picked] for x in (new, old))
        at = now if weight_at is None else [float(weight_at[p, g, i]) for i in picked]
        units = list(zip(now, [math.exp(min(20.0, x - y)) for x, y in zip(at, old_row, strict=True)], strict=True))
        if level == "joint" and picked:
            units = [(sum(now), math.exp(min(20.0, sum(at) - sum(old_row))))]
        if algorithm == "gmpo" and picked:
            high = options["clip_high"] if advantages[p, g] > 0 else math.inf
            low = -options["clip_low"] if advantages[p, g] < 0 else -math.inf
            each = [max(low, min(high, x - y)) for x, y in zip(at, old_row, strict=True)]
            units = [(0.0, math.exp(min(20.0, sum(each) / len(picked))))] * len(picked)
        elif level == "sequence" and picked:
            units = [(0.0, math.exp((sum(at) - sum(old_row)) / len(picked)))] * len(picked)
        own = advantages[p, g].expand(new.shape[2])[picked].tolist()  # of a sample or of each decision
        rows.append([naive_unit(algorithm, x, r, a, options) for (x, r), a in zip(units, own, strict=False)])
    if reduction == "per_sequence":
        return sum(sum(units) / max(1, len(units)) for units in rows) / len(rows)
    if reduction == "per_sequence_sum":
        return sum(map(sum, rows)) / len(rows)
    fixed = len(rows) * (1 if level == "joint" else new.shape[-1])
    return sum(map(sum, rows)) / (fixed if reduction == "constant" else sum(map(len, rows)))


def options_of(algorithm):
    return OPTIONS.get(algorithm, BOUNDED).values()


@pytest.mark.parametrize("spread", [0.3, 8.0])
@pytest.mark.parametrize(("algorithm", "level", "reduction"), COMBINATIONS)
def test_agrees_with_a_naive_loop_also_far_from_the_rollout_policy(algorithm, level, reduction, spread):
    for options, seed in product(options_of(algorithm), range(3)):
        new, old, advantages, is_valid = example(seed, spread=spread)
        names = {"algorithm": algorithm, "reduction": reduction, "options": options}
        kind = surrogate(algorithm, ratio_level=level, reduction=reduction, **options)
        for each in (advantages, advantages[..., None] * new.sin())[: 1 + (level == "decision")]:
            data = new, old, each, is_valid
            got = policy_loss(*data, kind)
            assert float(got) == pytest.approx(naive_policy_loss(*data, level=level, **names), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("algorithm", "level", "reduction"), [c for c in COMBINATIONS if c[0] not in ("cispo", "vespo")])
def test_gradients_by_finite_differences_are_zero_where_nothing_is_valid(algorithm, level, reduction):
    new, old, advantages, is_valid = example(1, p=2, g=2, length=4)
    for options in options_of(algorithm):
        kind = surrogate(algorithm, ratio_level=level, reduction=reduction, **options)
        loss = partial(policy_loss, old_logprobs=old, advantages=advantages, is_valid=is_valid, surrogate=kind)
        assert torch.autograd.gradcheck(loss, new.requires_grad_())
        (gradient,) = torch.autograd.grad(loss(new), new)
        assert torch.equal(gradient[~is_valid], torch.zeros_like(gradient[~is_valid]))


WEIGHTED = [c for c in COMBINATIONS if c[0] in ("cispo", "vespo")]


@pytest.mark.parametrize(("algorithm", "level", "reduction"), WEIGHTED)
def test_the_gradient_of_cispo_and_vespo_holds_their_weights_still(algorithm, level, reduction):
    new, old, advantages, is_valid = example(1, p=2, g=2, length=4)
    (options,) = options_of(algorithm)
    names = {"algorithm": algorithm, "reduction": reduction, "options": options}
    kind = surrogate(algorithm, ratio_level=level, reduction=reduction, **options)
    (got,) = torch.autograd.grad(policy_loss(new.requires_grad_(), old, advantages, is_valid, kind), new)
    at, want = new.detach(), torch.zeros_like(got)
    for index in product(*map(range, at.shape)):
        step = torch.zeros_like(at).index_put(tuple(map(torch.tensor, index)), torch.tensor(0.5, dtype=F64))
        plus, minus = (
            naive_policy_loss(x, old, advantages, is_valid, level=level, weight_at=at, **names) for x in (at + step, at - step)
        )
        want[index] = plus - minus  # the loss is linear in l: a step of any size is exact
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss_agrees_with_a_naive_loop_and_finite_differences(clip):
    generator = torch.Generator().manual_seed(6)
    values, returns, old = (torch.randn(50, dtype=F64, generator=generator) for _ in range(3))
    returns[::7] = math.nan
    errors = []
    for v, r, o in zip(values.tolist(), returns.tolist(), old.tolist(), strict=True):
        if not math.isnan(r):
            held = v if clip is None else o + min(max(v - o, -clip), clip)
            errors.append(0.5 * max((v - r) ** 2, (held - r) ** 2))
    assert float(value_loss(values, returns, old, clip)) == pytest.approx(sum(errors) / len(errors), abs=1e-14)
    step = value_loss(values.float(), returns.float(), old.float(), clip, denominator=torch.tensor(10.0, dtype=F64))
    assert float(step) == pytest.approx(sum(errors) / 10, rel=1e-5)
    assert step.dtype == torch.float32
    # Nothing scored: exactly 0, not 0 / 0.
    assert float(value_loss(values, torch.full_like(values, math.nan), old, clip)) == 0.0
    assert torch.autograd.gradcheck(lambda v: value_loss(v, returns[:9], old[:9], clip), values[:9].requires_grad_())


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0, math.nan])
    # R - V = 0, 0, 2: mean 2/3, variance 8/9; Var(R) = 2/3; 1 - 4/3 = -1/3
    for values, wanted in ([1.0, 2.0, 3.0, 0.0], 1.0), ([9.0] * 4, 0.0), ([1.0, 2.0, 1.0, 5.0], -1 / 3):
        assert explained_variance(torch.tensor(values), returns) == pytest.approx(wanted)
    assert math.isnan(explained_variance(torch.ones(3), torch.ones(3)))


def test_the_hybrid_loss_is_the_weighted_sum_of_the_terms_that_have_a_weight():
    x, poison = (torch.tensor(value, requires_grad=True) for value in (2.0, math.nan))
    terms = {"supervised": x, "policy": x**2, "entropy": poison}
    loss = hybrid_loss(terms, {"supervised": 1.0, "policy": -0.5, "entropy": 0.0, "absent": 0.0})
    loss.backward()
    assert (float(loss.detach()), float(x.grad), poison.grad) == (0.0, -1.0, None)  # 2 - 0.5 * 4;  1 - 0.5 * 2 * 2
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(NonFiniteLossError, match=f"'policy' of task 'points' must be finite, got {value} at step 17"):
            check_finite(terms | {"policy": torch.tensor(value)}, step=17, task="points")
    check_finite({"supervised": x}, step=17, task="points")


def policy_loss_of(**change):
    given = dict(zip(("logprobs", "old_logprobs", "advantages", "is_valid"), example(), strict=True))
    return policy_loss(**given | change)


TWO = torch.ones(2)


test_refuses = refuses(
    # Options that do not go together: see tests/core/test_params.py.
    (lambda: policy_loss_of(surrogate=surrogate("dr_grpo", max_decisions=4)), "the length of a row, 5, got 4"),
    (lambda: policy_loss_of(old_logprobs=torch.zeros(3, 4)), r"must share one shape \[P, G, L\]"),
    (lambda: policy_loss_of(advantages=torch.zeros(3, 4, 1)), r"advantages must have shape \[3, 4\], got \[3, 4, 1\]"),
    (
        lambda: policy_loss_of(advantages=torch.zeros(3, 4, 5), surrogate=surrogate(ratio_level="joint")),
        "ratio_level joint, got one per decision",
    ),
    (lambda: importance_ratio(TWO, TWO, TWO > 0, level="row"), "must be one of decision, joint, sequence, got 'row'"),
    (lambda: value_loss(TWO, TWO[:, None]), "returns must have shape"),
    (lambda: value_loss(TWO, TWO, clip=0.1), "old_values must be given"),
    (lambda: value_loss(TWO, TWO, TWO[:, None], clip=0.1), r"must have shape \[2\], got \[2, 1\]"),
    (lambda: value_loss(TWO, TWO, TWO, clip=0.0), "clip must be positive, got 0"),
    (lambda: hybrid_loss({"a": TWO[0]}, {"b": 1.0}), r"\['a', 'b'\]"),
    (lambda: hybrid_loss({"a": TWO[0]}, {"a": 1.0, "b": 1.0}), r"\['b'\]"),
    (lambda: hybrid_loss({"a": TWO[0]}, {"a": 0.0}), "at least one loss weight"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
@pytest.mark.parametrize(("algorithm", "level", "reduction"), RATIO_BASED)
def test_a_ratio_that_would_overflow_has_a_finite_gradient_and_none_where_clipped(algorithm, level, reduction, dtype):
    """Rows [2, 4]: A = 1 above -1, the log-ratio of each unit at 25, ..., 1000 above and below 0."""
    far = torch.tensor((25.0, 89.0, 100.0, 1000.0), dtype=dtype)
    old = torch.zeros(2, 4, 3, dtype=dtype)
    data = old, torch.tensor([[1.0] * 4, [-1.0] * 4]), torch.ones_like(old, dtype=torch.bool)
    for sign in (1.0, -1.0):
        new = (old + sign * far[:, None]).requires_grad_()
        clips = {} if algorithm in OPTIONS else {"clip_low": 0.2, "clip_high": 0.3}
        loss = policy_loss(new, *data, surrogate(algorithm, ratio_level=level, reduction=reduction, **clips))
        (gradient,) = torch.autograd.grad(loss, new)
        assert bool(loss.isfinite())
        assert bool(gradient.isfinite().all())
        if algorithm == "cispo":
            # The weight is min(r, 5), the same at every distance above; nothing falls silent, as it should not.
            assert bool((gradient[0] == -gradient[1]).all())
            assert sign < 0 or bool(((gradient[0] < 0) & (gradient[0] == gradient[0, 0])).all())
        elif sign > 0:
            assert torch.count_nonzero(gradient) == 0  # A > 0: the clip; A < 0: the bound of the log-ratio
        elif algorithm not in ("sapo", "vespo"):
            assert torch.count_nonzero(gradient[1]) == 0  # A < 0 and r < 1 - clip_low


@pytest.mark.parametrize(
    ("level", "want", "is_inside"),
    [
        ("decision", [[9.0] * 10, [20.0, -60.0] * 5], [[True] * 10, [False, True] * 5]),
        ("joint", [[20.0], [0.0]], [[False] * 10, [True] * 10]),
        ("sequence", [[9.0], [0.0]], [[True] * 10] * 2),
    ],
)
def test_summed_entries_are_bounded_after_the_sum_and_unchanged_inside(level, want, is_inside):
    """10 decisions of +-9: each is inside of the bound, their sum 90 is not; +60 and -60 cancel before anything is bounded."""
    is_valid, old = torch.ones(1, 2, 10, dtype=torch.bool), torch.zeros(1, 2, 10)
    new = torch.stack([torch.full((10,), 9.0), torch.tensor([60.0, -60.0] * 5)])[None].requires_grad_()
    ratio = importance_ratio(new, old, is_valid, level=level)
    torch.testing.assert_close(ratio, torch.tensor([want]).exp())
    (gradient,) = torch.autograd.grad(ratio.sum(), new)
    assert torch.equal(gradient != 0, torch.tensor([is_inside]))
    for dtype in (torch.float32, F64):
        x = torch.linspace(-100.0, 20.0, 1001, dtype=dtype)
        assert torch.equal(bounded_ratio(x), x.exp())
    assert bool(bounded_ratio(torch.tensor(math.nan)).isnan())
