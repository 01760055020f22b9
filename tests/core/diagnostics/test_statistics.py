import math
from functools import partial

import pytest
import torch
from refusals import refuses
from surrogates import surrogate
from torch import nn

from grpo_pipeline.core.diagnostics.gradient_flow import agrees, gradient_norms, reward_norms
from grpo_pipeline.core.diagnostics.gradient_report import gradient_report
from grpo_pipeline.core.diagnostics.ratio_statistics import ratio_statistics
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss

F64 = torch.float64


def statistics(ratios, advantages, level="decision", is_valid=None, kind="grpo", **options):
    logprobs, advantages = torch.tensor(ratios, dtype=F64).log(), torch.tensor(advantages, dtype=F64)
    is_valid = torch.ones_like(logprobs, dtype=torch.bool) if is_valid is None else torch.tensor(is_valid)
    clips = {} if kind in ("reinforce", "cispo", "sapo", "kl_cov") else {"clip_low": 0.2, "clip_high": 0.3}
    given = surrogate(kind, ratio_level="sequence" if kind == "gmpo" else level, **clips | options)
    return ratio_statistics(logprobs, torch.zeros_like(logprobs), advantages, is_valid, given)


NO, YES = False, True


@pytest.mark.parametrize(
    ("given", "want"),
    [
        # r = 0.5, 1, 1.5, 2: mean 1.25; low: only 0.5 < 0.8 with A < 0; high: 1.5 and 2 > 1.3 with A > 0;
        # ess 5^2 / (4 * (0.25 + 1 + 2.25 + 4)); mean of r - 1 - log r = 0.25 - log(0.5 * 1 * 1.5 * 2) / 4
        (([[[0.5, 1.0], [1.5, 2.0]]], [[-1.0, 1.0]]), (1.25, 2.0, 0.25, 0.5, 25 / 30, 0.25 - math.log(1.5) / 4)),
        # One joint ratio of 2 * 1/4; the row without a decision has none.
        (([[[2.0, 0.25, 9.0], [9.0] * 3]], [[1.0, 1.0]], "joint", [[[YES, YES, NO], [NO] * 3]]),
         (0.5, 0.5, 0.0, 0.0, 1.0, 0.5 - 1 + math.log(2))),
        # Row 0: r = 4, 1 (and a masked 9): geometric mean 2; row 1: r = 1/4 alone; row 2: wholly masked.
        # Per decision, r = 4, 1, 1/4: r - 1 - log r = 3 - log 4, 0, -3/4 + log 4
        (([[[4.0, 1.0, 9.0], [0.25, 9.0, 9.0], [9.0] * 3]], [[1.0, -1.0, 1.0]], "sequence",
          [[[YES, YES, NO], [YES, NO, NO], [NO] * 3]]), (1.125, 2.0, 0.5, 0.5, 2.25**2 / (2 * 4.0625), (3 - 0.75) / 3)),
    ],
)  # fmt: skip
def test_golden_ratios(given, want):
    got = statistics(*given, kind="gspo" if "sequence" in given else "grpo")
    names = ("policy/ratio_mean", "policy/ratio_max", "policy/clip_low", "policy/clip_high", "policy/ess", "kl/rollout")
    assert [got[name] for name in names] == pytest.approx(want)


def test_a_ratio_that_underflows_leaves_the_others_finite():
    far, is_valid = torch.full((1, 1, 2), -500.0), torch.ones(1, 1, 2, dtype=torch.bool)
    got = ratio_statistics(far, torch.zeros(1, 1, 2), torch.ones(1, 1), is_valid, surrogate(ratio_level="joint"))
    # r = exp(-1000) = 0 in float64: r - 1 - log r = 999
    assert (got["kl/rollout"], got["policy/ess"]) == (pytest.approx(999.0), 1.0)


FAR = ([[[0.1, 9.0]], [[0.1, 9.0]], [[0.1, 9.0]]], [[1.0], [-1.0], [0.0]])


@pytest.mark.parametrize(
    ("algorithm", "options", "low", "high", "dual"),
    [
        # r = 0.1 and 9 for A = 1, -1, 0: of six units one is held below (0.1, A < 0) and one above (9, A > 0).
        *((name, {}, 1, 1, None) for name in ("ppo", "grpo", "dr_grpo", "dapo", "bnpo")),
        # The cap holds the ratio of 9 whatever the advantage; nothing below. It is a bound of its own and not clip_high.
        ("cispo", {}, 0, 3, None), ("cispo", {"ratio_cap": 9.5}, 0, 0, None), ("sapo", {}, 0, 0, None),
        ("reinforce", {}, 0, 0, None), ("kl_cov", {}, 0, 0, None), ("clip_cov", {}, 1, 1, None),
        # The clip of gmpo is one of decisions, and in the logarithm: log 0.1 = -2.3, log 9 = 2.2.
        ("gmpo", {}, 1, 1, None), ("gmpo", {"clip_low": 2.4, "clip_high": 2.0}, 0, 1, None),
        # The bound on bad actions has a share of its own: only r = 9 with A = -1 is above 4.
        ("grpo", {"delta": 4.0}, 1, 1, 1), ("grpo", {"dual_clip": 4.0}, 1, 1, 1), ("grpo", {"delta": 9.5}, 1, 1, 0),
    ],
)  # fmt: skip
def test_the_clip_is_reported_for_algorithms_that_have_one(algorithm, options, low, high, dual):
    fixed = {"dr_grpo": "constant", "dapo": "per_decision", "bnpo": "per_decision_local"}.get(algorithm, "per_sequence")
    got = statistics(*FAR, kind=algorithm, reduction=fixed, **options)
    found = [got.get(f"policy/{name}") for name in ("clip_low", "clip_high", "clip_dual", "ratio_max")]
    assert found == pytest.approx([low / 6, high / 6, dual if dual is None else dual / 6, 9.0])


test_refuses = refuses(
    ({"is_valid": [[[False]]]}, "at least one decision must be valid"),
    by=partial(statistics, [[[1.0]]], [[1.0]]),
)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "sapo", "reinforce"])
@pytest.mark.parametrize("options", [{}, {"delta": 1.5}, {"dual_clip": 1.1}])
def test_the_shares_count_exactly_the_units_without_gradient(algorithm, options):
    has_clip = algorithm in ("grpo", "gspo")
    generator = torch.Generator().manual_seed(0)
    shape, of_units = ((4, 5, 1), (4, 5)) if algorithm == "gspo" else ((4, 5, 3), (4, 5, 3))  # of samples, or of decisions
    new, old = torch.randn(shape, dtype=F64, generator=generator, requires_grad=True), torch.zeros(shape, dtype=F64)
    data = old, torch.randn(of_units, dtype=F64, generator=generator), torch.rand(shape, generator=generator) < 0.8
    kind = surrogate(algorithm, **({"clip_low": 0.2, "clip_high": 0.3} | options if has_clip else {}))
    policy_loss(new, *data, kind).backward()
    silent = float((new.grad[data[-1]] == 0).double().mean())
    got = ratio_statistics(new.detach(), *data, kind)
    assert sum(share for name, share in got.items() if "clip" in name) == pytest.approx(silent)
    assert silent > 0 or not has_clip


def parameters(dtype=F64, **values):
    return {name: nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in values.items()}


def report(terms, weights, net):
    return gradient_report(terms, weights, {name: [parameter] for name, parameter in net.items()})


def test_golden_gradient_report():
    net = parameters(a=[1.0, 2.0], b=[3.0])
    a, b = net.values()
    terms = {"supervised": 3 * a[0] + 4 * b[0], "policy": a.sum(), "kl": 2 * a[1]}
    got = report(terms, {"supervised": 2.0, "policy": 1.0, "kl": 0.5}, net)
    # weighted gradients (a0, a1 | b): supervised (6, 0 | 8), policy (1, 1 | 0), kl (0, 1 | 0), rl (1, 2 | 0)
    norms = {"supervised": (10, 6, 8), "policy": (2**0.5, 2**0.5, 0), "kl": (1, 1, 0), "rl": (5**0.5, 5**0.5, 0)}
    want = {"grad_cosine/supervised_rl": 6 / (10 * math.sqrt(5)), "group_grad_cosine/supervised_rl/a": 6 / (6 * math.sqrt(5))}
    for name, (whole, of_a, of_b) in norms.items():
        want |= {f"grad_norm/{name}": whole, f"group_grad_norm/{name}/a": of_a, f"group_grad_norm/{name}/b": of_b}
    assert got == pytest.approx(want | dict.fromkeys(("dead/supervised", "dead/policy", "dead/kl"), 0.0), abs=1e-12)


def test_dead_terms_are_named_and_an_undefined_angle_is_absent():
    net = parameters(torch.float32, a=[1.0, 2.0], b=[3.0])
    a, b = net.values()
    b.grad = torch.tensor([7.0])
    terms = {
        "supervised": (a**2).sum(), "constant": torch.tensor(3.0), "cancelled": 0.0 * b.sum(), "unused": b.sum(),
        "tiny": 1e-30 * b.sum(),
    }  # fmt: skip
    got = report(terms, dict.fromkeys(terms, 1.0) | {"unused": 0.0}, net)
    dead = {name.removeprefix("dead/"): value for name, value in got.items() if name.startswith("dead/")}
    assert dead == {"supervised": 0.0, "constant": 1.0, "cancelled": 1.0, "tiny": 0.0}
    assert "grad_norm/unused" not in got
    # It touches neither grad nor graph.
    assert (a.grad, b.grad.tolist()) == (None, [7.0])
    (terms["supervised"] + terms["unused"]).backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0, 4.0], [8.0])
    b.requires_grad_(False)
    for alone in ({"supervised": 3 * a[0] + b[0]}, {"supervised": 3 * a[0], "policy": 0.0 * a.sum()}):
        got = report(alone, dict.fromkeys(alone, 1.0), net)
        assert (got["grad_norm/supervised"], got["grad_norm/rl"]) == (3.0, 0.0)
        assert not [name for name in got if "cosine" in name]


def test_norms_are_those_of_a_backward_pass_per_term():
    torch.manual_seed(0)
    components = {
        name: nn.Linear(*size, dtype=F64) for name, size in (("encoder", (3, 4)), ("head", (4, 2)), ("decoder", (4, 1)))
    }
    features = components["encoder"](torch.randn(5, 3, dtype=F64)).tanh()
    terms = {
        "policy": components["head"](features).log_softmax(1)[:, 0].mean(),
        "supervised": components["decoder"](features).square().mean(),
    }
    weights = {"policy": 0.3, "supervised": 2.0}
    norms = gradient_norms(terms, weights, {name: list(module.parameters()) for name, module in components.items()})
    for term in terms:
        for name, module in components.items():
            pulls = torch.autograd.grad(weights[term] * terms[term], module.parameters(), retain_graph=True, allow_unused=True)
            expected = sum(float(pull.square().sum()) for pull in pulls if pull is not None) ** 0.5
            assert norms[term][name] == pytest.approx(expected, rel=1e-12)
    assert not any(p.grad is not None for module in components.values() for p in module.parameters())


def test_only_terms_with_a_weight_and_a_graph_pull_at_what_is_trained():
    """The smallest leak is seen."""
    p = parameters(encoder=1.0, head=2.0, frozen=3.0)
    p["frozen"].requires_grad_(False)
    components = {name: [parameter] for name, parameter in p.items()}
    product = p["encoder"] * p["head"] * p["frozen"]
    terms = {"policy": product, "cut": product.detach(), "off": product, "leak": 1e-30 * p["head"]}
    norms = gradient_norms(terms, {"policy": 1.0, "cut": 1.0, "off": 0.0, "leak": 1.0}, components)
    nothing = {"encoder": 0.0, "head": 0.0, "frozen": 0.0}
    assert norms["policy"] == {"encoder": 6.0, "head": 3.0, "frozen": 0.0}
    assert norms["cut"] == norms["off"] == nothing
    assert norms["leak"] == pytest.approx(nothing | {"head": 1e-30}, rel=1e-12)
    assert not agrees(norms["leak"]["head"], "none")
    with pytest.raises(ValueError, match=r"weights must name every term, got none for \['cut', .*\]; give each a weight"):
        gradient_norms(terms, {"policy": 1.0}, components)
    found = reward_norms({"good": p["head"].detach(), "bad": p["head"] * 0, "target": torch.zeros(2)})
    assert (found["good"], found["target"]) == (0.0, 0.0)
    assert math.isnan(found["bad"])  # it has a graph, even if its gradient is 0


@pytest.mark.parametrize(
    ("norm", "gradient", "none", "any_finite"),
    [(0.0, NO, YES, YES), (5e-324, YES, NO, YES), (3.0, YES, NO, YES), (math.inf, NO, NO, NO), (math.nan, NO, NO, NO)],
)
def test_what_agrees(norm, gradient, none, any_finite):
    assert [agrees(norm, expected) for expected in ("gradient", "none", "any")] == [gradient, none, any_finite]
    with pytest.raises(ValueError, match="expected must be one of .*, got 'some'"):
        agrees(norm, "some")
