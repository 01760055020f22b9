import math
from itertools import product

import pytest
import torch

from grpo_pipeline.core.losses import (
    REDUCTIONS,
    SURROGATES,
    UNITS,
    NonFiniteLossError,
    check_finite,
    explained_variance,
    hybrid_loss,
    importance_ratio,
    loss_denominator,
    policy_loss,
    value_loss,
)

F64 = torch.float64
COMBINATIONS = list(product(SURROGATES, UNITS, REDUCTIONS))


def example(seed=0, p=3, g=4, length=5):
    """Log-probs, old log-probs, advantages and a mask with one row that is wholly invalid."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(p, g, length, dtype=F64, generator=generator) - 2
    new = old + 0.3 * torch.randn(p, g, length, dtype=F64, generator=generator)
    advantages = torch.randn(p, g, dtype=F64, generator=generator)
    is_valid = torch.rand(p, g, length, generator=generator) < 0.7
    is_valid[0, 1] = False
    return new, old, advantages, is_valid


def naive_policy_loss(new, old, advantages, is_valid, *, algorithm, clip_low, clip_high, ratio_level, reduction):
    """One unit at a time, in Python floats."""
    rows, units_per_row = [], 1 if ratio_level == "joint" else new.shape[-1]
    for p, g in product(range(new.shape[0]), range(new.shape[1])):
        pairs = [(float(n), float(o)) for n, o, m in zip(new[p, g], old[p, g], is_valid[p, g], strict=True) if m]
        if ratio_level == "joint" and pairs:
            pairs = [(sum(n for n, _ in pairs), sum(o for _, o in pairs))]
        a = float(advantages[p, g])
        units = []
        for n, o in pairs:
            r = math.exp(n - o)
            clipped = min(max(r, 1 - clip_low), 1 + clip_high)
            units.append(-a * n if algorithm == "reinforce" else -min(r * a, clipped * a))
        rows.append(units)
    total = sum(map(sum, rows))
    if reduction == "per_sequence":
        return sum(sum(units) / max(1, len(units)) for units in rows) / len(rows)
    return total / (sum(map(len, rows)) if reduction == "per_decision" else len(rows) * units_per_row)


@pytest.mark.parametrize(("algorithm", "level", "reduction"), COMBINATIONS)
def test_agrees_with_a_naive_loop(algorithm, level, reduction):
    options = {"algorithm": algorithm, "ratio_level": level, "reduction": reduction, "clip_low": 0.2, "clip_high": 0.28}
    for seed in range(5):
        assert float(policy_loss(*example(seed), **options)) == pytest.approx(
            naive_policy_loss(*example(seed), **options), abs=1e-12
        )


@pytest.mark.parametrize(("algorithm", "level", "reduction"), COMBINATIONS)
def test_gradients_by_finite_differences(algorithm, level, reduction):
    new, old, advantages, is_valid = example(1)

    def loss(logprobs):
        return policy_loss(logprobs, old, advantages, is_valid, algorithm=algorithm, ratio_level=level, reduction=reduction)

    assert torch.autograd.gradcheck(loss, new.requires_grad_())


def scalar_loss(ratio, advantage, **options):
    logprob = torch.tensor([[[math.log(ratio)]]], dtype=F64, requires_grad=True)
    loss = policy_loss(
        logprob,
        torch.zeros(1, 1, 1, dtype=F64),
        torch.tensor([[advantage]], dtype=F64),
        torch.ones(1, 1, 1, dtype=torch.bool),
        algorithm="grpo",
        **options,
    )
    loss.backward()
    return float(loss.detach()), float(logprob.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -2.6, 0.0),  # min(1.5 * 2, 1.3 * 2) = 2.6: held at 1 + 0.3
        (1.5, -2.0, 3.0, 3.0),  # min(-3, -2.6) = -3: a bad action that became likelier is pushed back
        (0.5, 2.0, -1.0, -1.0),  # min(1, 1.6) = 1: a good action that became rarer is pulled up
        (0.5, -2.0, 1.6, 0.0),  # min(-1, -1.6) = -1.6: held at 1 - 0.2
        (1.1, 2.0, -2.2, -2.2),  # inside the bounds: d/dl of -r * A = -r * A
    ],
)
def test_golden_clipped_surrogate(ratio, advantage, loss, gradient):
    got = scalar_loss(ratio, advantage, clip_low=0.2, clip_high=0.3)
    assert got == pytest.approx((loss, gradient), abs=1e-12)


def test_golden_reductions():
    # Two rows of A * l with A = -1 -> x = l: row 0 = 1, 2, (masked 9); row 1 = 4, (masked, masked).
    logprobs = torch.tensor([[[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]]], dtype=F64)
    is_valid = torch.tensor([[[True, True, False], [True, False, False]]])
    advantages = -torch.ones(1, 2, dtype=F64)

    def loss(reduction, level="decision"):
        return float(
            policy_loss(logprobs, logprobs, advantages, is_valid, algorithm="reinforce", reduction=reduction, ratio_level=level)
        )

    assert loss("per_sequence") == pytest.approx((1.5 + 4) / 2)
    assert loss("per_decision") == pytest.approx((1 + 2 + 4) / 3)
    assert loss("constant") == pytest.approx((1 + 2 + 4) / 6)
    assert [loss(name, "joint") for name in REDUCTIONS] == pytest.approx([(3 + 4) / 2] * 3)


@pytest.mark.parametrize(("level", "reduction"), list(product(UNITS, REDUCTIONS)))
def test_on_policy_gradient_of_grpo_is_that_of_reinforce(level, reduction):
    new, _, advantages, is_valid = example(2)
    new.requires_grad_()
    options = {"ratio_level": level, "reduction": reduction}
    gradients = [
        torch.autograd.grad(policy_loss(new, new.detach(), advantages, is_valid, algorithm=name, **options), new)[0]
        for name in ("grpo", "reinforce")
    ]
    assert float(gradients[0].abs().max()) > 0
    torch.testing.assert_close(*gradients, atol=1e-15, rtol=0)


@pytest.mark.parametrize("level", UNITS)
def test_ratio_is_exactly_one_at_the_first_update(level):
    new, _, _, is_valid = example()
    ratio = importance_ratio(new, new.clone(), is_valid, level=level)
    assert torch.equal(ratio, torch.ones_like(ratio))


def test_joint_ratio_is_the_product_over_valid_decisions():
    new, old, _, is_valid = example()
    per_decision = importance_ratio(new, old, is_valid, level="decision")
    torch.testing.assert_close(
        importance_ratio(new, old, is_valid, level="joint"), per_decision.prod(-1, keepdim=True), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("algorithm", "level", "reduction"), COMBINATIONS)
def test_invalid_decisions_never_matter_even_at_minus_infinity(algorithm, level, reduction):
    new, old, advantages, is_valid = example()
    options = {"algorithm": algorithm, "ratio_level": level, "reduction": reduction}
    before = policy_loss(new, old, advantages, is_valid, **options)
    padded = new.masked_fill(~is_valid, -math.inf).requires_grad_()
    after = policy_loss(padded, old.masked_fill(~is_valid, -math.inf), advantages, is_valid, **options)
    assert float(after.detach()) == float(before)
    after.backward()
    assert bool(padded.grad.isfinite().all())
    assert torch.count_nonzero(padded.grad[~is_valid]) == 0


@pytest.mark.parametrize(("level", "reduction"), list(product(UNITS, REDUCTIONS)))
def test_any_micro_batch_split_gives_one_gradient(level, reduction):
    new, old, advantages, is_valid = example(4, p=6)
    new.requires_grad_()
    options = {"algorithm": "grpo", "ratio_level": level, "reduction": reduction}
    (whole,) = torch.autograd.grad(policy_loss(new, old, advantages, is_valid, **options), new)
    parts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    units = is_valid if level == "decision" else is_valid.any(-1, keepdim=True)
    denominator = sum(loss_denominator(units[part], reduction) for part in parts)
    pieces = [
        policy_loss(new[part], old[part], advantages[part], is_valid[part], denominator=denominator, **options) for part in parts
    ]
    (split,) = torch.autograd.grad(sum(pieces), new)
    torch.testing.assert_close(split, whole, atol=1e-15, rtol=0)


def test_no_gradient_reaches_advantages_or_old_log_probs():
    new, old, advantages, is_valid = example()
    for tensor in (new, old, advantages):
        tensor.requires_grad_()
    policy_loss(new, old, advantages, is_valid, algorithm="grpo").backward()
    assert (old.grad, advantages.grad) == (None, None)
    assert float(new.grad.abs().max()) > 0


def test_value_loss():
    values = torch.tensor([1.0, 3.0], dtype=F64)
    returns = torch.tensor([2.0, 3.5], dtype=F64)
    # 0.5 * (1 + 0.25) / 2
    assert float(value_loss(values, returns)) == pytest.approx(0.3125)
    # V_old = 0, 3, clip 0.2 -> 0.2, 3: errors 3.24, 0.25; the larger of each: (3.24 + 0.25) / 4
    old = torch.tensor([0.0, 3.0], dtype=F64)
    assert float(value_loss(values, returns, old, 0.2)) == pytest.approx(0.8725)
    # A return that was not scored leaves the mean: 0.5 * 1 / 1
    assert float(value_loss(values, torch.tensor([2.0, math.nan]))) == pytest.approx(0.5)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss_gradient_by_finite_differences(clip):
    generator = torch.Generator().manual_seed(5)
    values, returns, old = (torch.randn(7, dtype=F64, generator=generator) for _ in range(3))
    returns[2] = math.nan
    assert torch.autograd.gradcheck(lambda v: value_loss(v, returns, old, clip), values.requires_grad_())


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0, math.nan])
    assert explained_variance(returns.nan_to_num(), returns) == 1.0
    assert explained_variance(torch.full((4,), 9.0), returns) == 0.0
    # R - V = 0, 0, 2: mean 2/3, variance 8/9; Var(R) = 2/3; 1 - 4/3 = -1/3
    assert explained_variance(torch.tensor([1.0, 2.0, 1.0, 5.0]), returns) == pytest.approx(-1 / 3)
    assert math.isnan(explained_variance(torch.ones(3), torch.ones(3)))


def test_hybrid_loss_is_the_weighted_sum_and_a_weight_of_zero_cuts_the_term_off():
    x = torch.tensor(2.0, requires_grad=True)
    poison = torch.tensor(math.nan, requires_grad=True)
    loss = hybrid_loss({"supervised": x, "policy": x**2, "entropy": poison}, {"supervised": 1.0, "policy": -0.5, "entropy": 0.0})
    loss.backward()
    assert float(loss.detach()) == 0.0  # 2 - 0.5 * 4
    assert float(x.grad) == -1.0  # 1 - 0.5 * 2 * 2
    assert poison.grad is None
    assert float(hybrid_loss({"a": torch.tensor(3.0)}, {"a": 2.0, "absent": 0.0})) == 6.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"b": 1.0}, r"\['a', 'b'\]"), ({"a": 1.0, "b": 1.0}, r"\['b'\]"), ({"a": 0.0}, "at least one loss weight")],
)
def test_hybrid_loss_refuses(weights, message):
    with pytest.raises(ValueError, match=message):
        hybrid_loss({"a": torch.tensor(1.0)}, weights)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_check_finite_names_step_task_and_term(value):
    terms = {"supervised": torch.tensor(1.0), "policy": torch.tensor(value, requires_grad=True)}
    with pytest.raises(NonFiniteLossError, match=f"'policy' of task 'points' must be finite, got {value} at step 17"):
        check_finite(terms, step=17, task="points")
    check_finite({"supervised": terms["supervised"]}, step=17, task="points")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "ppo2"}, "algorithm must be one of reinforce, grpo, got 'ppo2'"),
        ({"ratio_level": "row"}, "ratio_level must be one of decision, joint, got 'row'"),
        ({"reduction": "mean"}, "reduction must be one of .* got 'mean'"),
        ({"old_logprobs": torch.zeros(3, 4)}, r"must share one shape \[P, G, L\]"),
        ({"advantages": torch.zeros(3, 4, 5)}, r"advantages must have shape \[3, 4\], got \[3, 4, 5\]"),
    ],
)
def test_policy_loss_refuses(change, message):
    new, old, advantages, is_valid = example()
    arguments = {
        "logprobs": new,
        "old_logprobs": old,
        "advantages": advantages,
        "is_valid": is_valid,
        "algorithm": "grpo",
    } | change
    with pytest.raises(ValueError, match=message):
        policy_loss(**arguments)


def test_value_loss_refuses():
    with pytest.raises(ValueError, match="shape of values"):
        value_loss(torch.ones(2), torch.ones(2, 1))
    with pytest.raises(ValueError, match="old_values must be given"):
        value_loss(torch.ones(2), torch.ones(2), clip=0.1)
