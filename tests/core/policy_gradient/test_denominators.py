"""Denominators of losses, also in a step that is cut into micro-batches."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surrogates import surrogate
from torch import nn

from grpo_pipeline.core.policy_gradient.hybrid_loss import hybrid_loss
from grpo_pipeline.core.policy_gradient.kl import count_kl, kl_loss
from grpo_pipeline.core.policy_gradient.names import REDUCTIONS
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.ratios import counted_units
from grpo_pipeline.core.policy_gradient.reductions import count_units, loss_denominator, mean_over, reduce_units
from grpo_pipeline.core.policy_gradient.value_loss import value_loss

F64 = torch.float64
P, G, L, V, FEATURES = 7, 3, 9, 5, 4
WEIGHTS = {"policy": 1.0, "kl": 0.3, "entropy": -0.2, "value": 0.5, "supervised": 0.7}
NAMES = [
    {"algorithm": algorithm, "ratio_level": level, "reduction": reduction}
    for algorithm, level, reduction in (
        ("grpo", "decision", "per_decision"), ("grpo", "decision", "per_sequence"), ("dr_grpo", "decision", "constant"),
        ("ppo", "joint", "per_sequence"), ("sapo", "joint", "per_decision"), ("gspo", "sequence", "per_sequence"),
        ("gspo", "sequence", "per_decision"), ("cispo", "decision", "per_decision"),
        ("luspo", "sequence", "per_sequence_sum"), ("gmpo", "sequence", "per_sequence"), ("vespo", "joint", "per_sequence"),
    )
]  # fmt: skip


def batch(*edges):
    """Everything a loss needs, from prompt to prompt; rows of 0 to L valid decisions, hardly any in the first prompts."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([[1, 0, 1], [0, 0, 0], [2, 1, 1], [9, 8, 9], [3, 9, 1], [9, 9, 9], [9, 9, 8]])
    sizes = {"features": (P, FEATURES), "old": (P, G, L), "ref": (P, G, L), "advantages": (P, G), "returns": (P,)}
    whole = {name: torch.randn(size, dtype=F64, generator=generator) for name, size in sizes.items()}
    whole |= {name: 0.3 * whole[name] - 1.6 for name in ("old", "ref")}
    whole["returns"][2] = torch.nan
    whole |= {
        name: torch.randint(V, size, generator=generator) for name, size in {"actions": (P, G, L), "targets": (P, 1)}.items()
    }
    whole["is_valid"] = torch.arange(L) < lengths[..., None]
    return {name: tensor[slice(*edges or (P,))] for name, tensor in whole.items()}


class Policy(nn.Module):
    """Linear logits for each decision, and a value."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.logits = nn.Parameter(torch.randn(FEATURES, L * V, dtype=F64, generator=generator))
        self.value = nn.Parameter(torch.randn(FEATURES, dtype=F64, generator=generator))

    def forward(self, features):
        """Return log-probabilities [P, L, V] and values [P]."""
        return (features @ self.logits).reshape(-1, L, V).log_softmax(-1), features @ self.value


def kind_of(names):
    return surrogate(names["algorithm"], ratio_level=names["ratio_level"], reduction=names["reduction"])


def step_loss(policy, part, total, names):
    """Every term of the hybrid loss of one micro-batch, each with the denominator of the step (None = its own)."""
    log_probs, values = policy(part["features"])
    logprobs = log_probs[:, None].expand(-1, G, -1, -1).gather(-1, part["actions"][..., None])[..., 0]
    over = {term: {"denominator": None if total is None else total[term]} for term in WEIGHTS}
    rows, kl = [part[name] for name in ("old", "advantages", "is_valid")], {"estimator": "k3", "reduction": names["reduction"]}
    terms = {
        "policy": policy_loss(logprobs, *rows, kind_of(names), **over["policy"]),
        "kl": kl_loss(logprobs, part["ref"], part["is_valid"], **kl, **over["kl"]),
        "entropy": mean_over(-(log_probs.exp() * log_probs).sum(-1).mean(-1), **over["entropy"]),
        "value": value_loss(values, part["returns"], **over["value"]),
        "supervised": mean_over(-log_probs[:, 0].gather(-1, part["targets"]), **over["supervised"]),
    }
    return hybrid_loss(terms, WEIGHTS)


def total_of(parts, names):
    """Count the micro-batches as a step does: each term by itself, at least 1."""
    level, reduction = names["ratio_level"], names["reduction"]
    counts = [
        {
            "policy": count_units(counted_units(part["is_valid"], level), reduction),
            "kl": count_kl(part["is_valid"], ratio_level=level, reduction=reduction),
            "value": (~part["returns"].isnan()).sum(), **dict.fromkeys(("entropy", "supervised"), len(part["is_valid"])),
        }
        for part in parts
    ]  # fmt: skip
    return {term: max(1.0, sum(float(one[term]) for one in counts)) for term in WEIGHTS}


def gradient(parts, total, names):
    """The gradient of one step, as one vector."""
    policy = Policy()
    for part in parts:
        step_loss(policy, part, total, names).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("names", NAMES, ids=lambda names: "-".join(names.values()))
@given(cuts=st.sets(st.integers(1, P - 1)))
@settings(max_examples=15, derandomize=True)
def test_any_split_into_micro_batches_gives_the_gradient_of_the_whole_batch(names, cuts):
    whole = gradient([batch()], None, names)
    assert float(whole.abs().max()) > 0.01
    parts = [batch(*edges) for edges in pairwise([0, *sorted(cuts), P])]
    torch.testing.assert_close(gradient(parts, total_of(parts, names), names), whole, atol=1e-12, rtol=0)


def test_the_local_reduction_is_the_mean_over_micro_batches_and_depends_on_the_split():
    names = {"algorithm": "bnpo", "ratio_level": "decision", "reduction": "per_decision_local"}
    parts = [batch(*edges) for edges in ((0, 1), (1, 4), (4, 7))]
    total = total_of(parts, names)
    for part in parts:
        logprobs = torch.zeros(part["is_valid"].shape, dtype=F64, requires_grad=True)
        data = logprobs, logprobs.detach(), torch.ones_like(part["advantages"]), part["is_valid"]
        loss = policy_loss(*data, kind_of(names), denominator=total["policy"])
        # -A * r = -1 for each valid decision: each local mean is -1, and so is the mean of the three.
        assert float(loss.detach()) == pytest.approx(-1 / 3, abs=1e-14)
        loss.backward()
        torch.testing.assert_close(logprobs.grad, part["is_valid"] * (-1 / 3 / part["is_valid"].sum().double()))


@pytest.mark.parametrize(
    ("level", "reduction", "longest", "policy", "kl"),
    [
        ("decision", "per_decision", None, 2, 2), ("joint", "per_decision", None, 1, 2), ("sequence", "constant", 10, 20, 20),
        ("decision", "constant", 10, 20, 20), ("joint", "constant", None, 2, 2), ("sequence", "per_sequence", None, 2, 2),
    ],
)  # fmt: skip
def test_golden_counts_of_a_surrogate_and_of_a_kl_over_decisions(level, reduction, longest, policy, kl):
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    assert float(count_units(counted_units(is_valid, level), reduction, longest)) == policy
    assert float(count_kl(is_valid, ratio_level=level, reduction=reduction, max_decisions=longest)) == kl


def test_a_row_longer_than_the_longest_is_refused():
    with pytest.raises(ValueError, match="max_decisions must be at least the length of a row, 4, got 3"):
        count_units(torch.ones(1, 1, 4, dtype=torch.bool), "constant", 3)


# Row 0: 1, 2, (masked 9); row 1: 4, (masked, masked); row 2: wholly masked.
X = torch.tensor([[[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]], dtype=F64)
VALID = torch.tensor([[[True, True, False], [True, False, False], [False, False, False]]])


@pytest.mark.parametrize(
    ("reduction", "options", "want"),
    [
        ("per_sequence", {}, (1.5 + 4 + 0) / 3),
        ("per_sequence_sum", {}, (1 + 2 + 4) / 3),
        ("per_sequence_sum", {"denominator": 10.0}, (1 + 2 + 4) / 10),
        ("per_decision", {}, (1 + 2 + 4) / 3),
        ("constant", {}, (1 + 2 + 4) / (3 * 3)),
        ("constant", {"max_decisions": 5}, (1 + 2 + 4) / (3 * 5)),
        ("per_decision_local", {}, (1 + 2 + 4) / 3),
        ("per_sequence", {"denominator": 10.0}, (1.5 + 4) / 10),
        ("per_decision", {"denominator": torch.tensor(10, dtype=F64)}, 7 / 10),
        ("constant", {"denominator": 10}, 7 / 10),
        # The local mean stays local: its denominator counts micro-batches.
        ("per_decision_local", {"denominator": 4.0}, 7 / 3 / 4),
    ],
)
def test_golden_reductions(reduction, options, want):
    assert float(reduce_units(X, VALID, reduction=reduction, **options)) == pytest.approx(want, abs=1e-15)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_valid_is_exactly_zero_and_a_float32_loss_stays_float32(reduction):
    x = torch.full((1, 2, 3), math.nan, dtype=F64, requires_grad=True)
    loss = reduce_units(x, torch.zeros(1, 2, 3, dtype=torch.bool), reduction=reduction)
    loss.backward()
    assert float(loss.detach()) == torch.count_nonzero(x.grad) == 0
    for denominator in (None, torch.tensor(7, dtype=F64), 7.0):
        assert reduce_units(X.float(), VALID, reduction=reduction, denominator=denominator).dtype == torch.float32


def test_counts_add_up_over_micro_batches_also_where_one_is_wholly_masked():
    masks = torch.cat([VALID, VALID & False, ~VALID])
    rows = {name: [3, 3, 3] for name in ("per_sequence", "per_sequence_sum")}
    wanted = rows | {"per_decision": [3, 0, 6], "constant": [24, 24, 24], "per_decision_local": [1, 1, 1]}
    assert {name: [float(count_units(mask[None], name, 8)) for mask in masks] for name in REDUCTIONS} == wanted
    for name in set(REDUCTIONS) - {"per_decision_local"}:
        assert sum(wanted[name]) == float(count_units(masks, name, 8))
    assert float(loss_denominator(VALID & False, "per_decision")) == 1.0


def test_mean_over():
    x = torch.tensor([1.0, 2.0, 6.0])
    given = mean_over(x, denominator=torch.tensor(18.0, dtype=F64))
    assert (float(mean_over(x)), float(given), given.dtype) == (3.0, 0.5, torch.float32)
    assert float(mean_over(torch.zeros(0))) == 0.0
