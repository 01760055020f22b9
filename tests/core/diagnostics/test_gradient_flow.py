import math

import pytest
import torch
from torch import nn

from grpo_pipeline.core.diagnostics.statistics import agrees, gradient_norms, reward_norms

F64 = torch.float64


def scalars(**values):
    return {name: nn.Parameter(torch.tensor(value, dtype=F64)) for name, value in values.items()}


def test_norms_are_those_of_a_backward_pass_per_term():
    torch.manual_seed(0)
    components = {
        "encoder": nn.Linear(3, 4, dtype=F64),
        "head": nn.Linear(4, 2, dtype=F64),
        "decoder": nn.Linear(4, 1, dtype=F64),
    }
    features = components["encoder"](torch.randn(5, 3, dtype=F64)).tanh()
    terms = {
        "policy": components["head"](features).log_softmax(1)[:, 0].mean(),
        "supervised": components["decoder"](features).square().mean(),
    }
    weights = {"policy": 0.3, "supervised": 2.0}
    parameters = {name: list(module.parameters()) for name, module in components.items()}
    norms = gradient_norms(terms, weights, parameters)
    assert not any(p.grad is not None for group in parameters.values() for p in group)
    for term in terms:
        (weights[term] * terms[term]).backward(retain_graph=True)
        for name, group in parameters.items():
            grads = [p.grad.flatten() for p in group if p.grad is not None]
            expected = float(torch.cat(grads).norm()) if grads else 0.0
            assert norms[term][name] == pytest.approx(expected, rel=1e-12)
            for p in group:
                p.grad = None


def test_detached_frozen_and_weightless_pull_at_nothing():
    p = scalars(encoder=1.0, head=2.0)
    p["frozen"] = nn.Parameter(torch.tensor(3.0, dtype=F64), requires_grad=False)
    components = {name: [parameter] for name, parameter in p.items()}
    product = p["encoder"] * p["head"] * p["frozen"]
    terms = {"policy": product, "cut": product.detach(), "off": product}
    norms = gradient_norms(terms, {"policy": 1.0, "cut": 1.0, "off": 0.0}, components)
    assert norms["policy"] == {"encoder": 6.0, "head": 3.0, "frozen": 0.0}
    assert norms["cut"] == norms["off"] == {"encoder": 0.0, "head": 0.0, "frozen": 0.0}


def test_the_smallest_leak_is_seen():
    p = scalars(decoder=1.0)
    norms = gradient_norms({"policy": 1e-30 * p["decoder"]}, {"policy": 1.0}, {"decoder": [p["decoder"]]})
    assert norms["policy"]["decoder"] == pytest.approx(1e-30, rel=1e-12)
    assert not agrees(norms["policy"]["decoder"], "none")


def test_a_term_without_weight_is_refused():
    p = scalars(head=1.0)
    terms = {"policy": 2 * p["head"], "kl": 3 * p["head"]}
    with pytest.raises(ValueError, match="expected must be one of .*, got 'some'"):
        agrees(1.0, "some")
    with pytest.raises(ValueError, match=r"weights must name every term, got none for \['kl'\]; give each a weight"):
        gradient_norms(terms, {"policy": 1.0}, {"head": [p["head"]]})


def test_a_reward_with_a_graph_is_nan_even_if_its_gradient_is_0():
    p = scalars(decoder=[1.0, 2.0])
    found = reward_norms({"good": p["decoder"].detach(), "bad": p["decoder"] * 0, "target": torch.zeros(2)})
    assert (found["good"], found["target"]) == (0.0, 0.0)
    assert math.isnan(found["bad"])


@pytest.mark.parametrize(
    ("norm", "gradient", "none", "any_finite"),
    [
        (0.0, False, True, True),
        (5e-324, True, False, True),
        (3.0, True, False, True),
        (math.inf, False, False, False),
        (math.nan, False, False, False),
    ],
)
def test_what_agrees(norm, gradient, none, any_finite):
    assert [agrees(norm, expected) for expected in ("gradient", "none", "any")] == [gradient, none, any_finite]
