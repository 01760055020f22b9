"""Denominators of a step that is cut into micro-batches and spread over processes."""

import math
import multiprocessing
import sys
from contextlib import nullcontext
from dataclasses import asdict
from itertools import pairwise, product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from surrogates import surrogate
from torch import nn

from grpo_pipeline.core.policy_gradient.denominators import add, all_reduce_counts, count
from grpo_pipeline.core.policy_gradient.hybrid_loss import hybrid_loss
from grpo_pipeline.core.policy_gradient.kl import kl_loss
from grpo_pipeline.core.policy_gradient.names import REDUCTIONS
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
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
# Prompts of each micro-batch of each process: two processes, three micro-batches and one.
SHARES = (((0, 1), (1, 2), (2, 5)), ((5, 7),))


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
    over = {term: {"denominator": None if total is None else getattr(total, term)} for term in WEIGHTS}
    rows, kl = [part[name] for name in ("old", "advantages", "is_valid")], {"estimator": "k3", "reduction": names["reduction"]}
    terms = {
        "policy": policy_loss(logprobs, *rows, kind_of(names), **over["policy"]),
        "kl": kl_loss(logprobs, part["ref"], part["is_valid"], **kl, **over["kl"]),
        "entropy": mean_over(-(log_probs.exp() * log_probs).sum(-1).mean(-1), **over["entropy"]),
        "value": value_loss(values, part["returns"], **over["value"]),
        "supervised": mean_over(-log_probs[:, 0].gather(-1, part["targets"]), **over["supervised"]),
    }
    return hybrid_loss(terms, WEIGHTS)


def total_of(parts, names, how="mean"):
    """Count the micro-batches as a training loop would."""
    levels = {"ratio_level": names["ratio_level"], "reduction": names["reduction"], "kl_reduction": names["reduction"]}
    counts = add(*(count(part["is_valid"], returns=part["returns"], **levels) for part in parts))
    return all_reduce_counts(counts, gradient_reduction=how)


def gradient(parts, total, names, wrap=lambda policy: policy):
    """The gradient of one step, as one vector."""
    policy = Policy()
    model = wrap(policy)
    for i, part in enumerate(parts):
        with model.no_sync() if model is not policy and i < len(parts) - 1 else nullcontext():
            step_loss(model, part, total, names).backward()
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
    total = total_of(parts, names, "sum")
    for part in parts:
        logprobs = torch.zeros(part["is_valid"].shape, dtype=F64, requires_grad=True)
        data = logprobs, logprobs.detach(), torch.ones_like(part["advantages"]), part["is_valid"]
        loss = policy_loss(*data, kind_of(names), denominator=total.policy)
        # -A * r = -1 for each valid decision: each local mean is -1, and so is the mean of the three.
        assert float(loss.detach()) == pytest.approx(-1 / 3, abs=1e-14)
        loss.backward()
        torch.testing.assert_close(logprobs.grad, part["is_valid"] * (-1 / 3 / part["is_valid"].sum().double()))


@pytest.mark.parametrize(
    ("level", "reduction", "kl_reduction", "more", "wanted"),
    [
        ("decision", "per_decision", None, {"returns": torch.tensor([math.nan])}, (2, 1, 1, 0, 1)),
        ("joint", "per_decision", "per_decision", {"examples": 9}, (1, 2, 1, 1, 9)),
        ("sequence", "constant", "per_sequence", {"max_decisions": 10}, (20, 2, 1, 1, 1)),
        ("decision", "constant", "constant", {"max_decisions": 10}, (20, 20, 1, 1, 1)),
        ("sequence", "constant", "constant", {"max_decisions": 10}, (20, 20, 1, 1, 1)),
        ("joint", "constant", "constant", {}, (2, 2, 1, 1, 1)),
    ],
)
def test_golden_counts_add_up_and_an_empty_step_divides_by_one(level, reduction, kl_reduction, more, wanted):
    names = {"ratio_level": level, "reduction": reduction, "kl_reduction": kl_reduction} | more
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    counts, empty = count(is_valid, **names), count(is_valid & False, **names)
    values, none = asdict(counts), asdict(empty)
    assert tuple(values.values()) == wanted
    assert asdict(add(counts, counts, empty)) == {name: 2 * x + none[name] for name, x in values.items()}
    for how, (raw, found) in product(("sum", "mean"), ((counts, values), (empty, none))):  # alike in one process
        assert asdict(all_reduce_counts(raw, gradient_reduction=how)) == {n: max(1.0, x) for n, x in found.items()}


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path, monkeypatch):
    if sys.platform == "linux":  # loopback, where it has this name: a container's host name need not resolve
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    fork = multiprocessing.get_context("fork")  # torch is imported already
    running = [fork.Process(target=reduce_gradients, args=(rank, 2, tmp_path), daemon=True) for rank in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join(600)
        process.kill()
    assert [process.exitcode for process in running] == [0, 0]
    whole = gradient([batch()], None, NAMES[0])
    for rank, how in product(range(2), ("sum", "mean")):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[how]
        torch.testing.assert_close(found, whole, atol=1e-12, rtol=0)


def reduce_gradients(rank, world, folder):
    """Join the group through a file, so that no port is taken; leave gradients that are added up, and averaged, in RANK.pt."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(folder / "group").as_uri(), rank=rank, world_size=world)
    try:
        parts, names = [batch(*edges) for edges in SHARES[rank]], NAMES[0]
        dist.all_reduce(added := gradient(parts, total_of(parts, names, "sum"), names))
        averaged = gradient(parts, total_of(parts, names, "mean"), names, nn.parallel.DistributedDataParallel)
        torch.save({"sum": added, "mean": averaged}, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_refuses():
    is_valid, names = torch.ones(1, 1, 4, dtype=torch.bool), {"ratio_level": "decision", "reduction": "constant"}
    with pytest.raises(ValueError, match="at least one micro-batch, got none"):
        add()
    with pytest.raises(ValueError, match="gradient_reduction must be one of sum, mean, got 'average'"):
        all_reduce_counts(count(is_valid, **names), gradient_reduction="average")
    with pytest.raises(ValueError, match="max_decisions must be at least the length of a row, 4, got 3"):
        count(is_valid, max_decisions=3, **names)


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
