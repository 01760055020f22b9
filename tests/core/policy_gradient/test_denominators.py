import importlib.util
import math
import os
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.core.policy_gradient.denominators import add, all_reduce_counts, count

WORKER = Path(__file__).with_name("gloo_worker.py")
spec = importlib.util.spec_from_file_location("gloo_worker", WORKER)
worker = sys.modules.setdefault("gloo_worker", importlib.util.module_from_spec(spec))
spec.loader.exec_module(worker)

F64 = torch.float64
NAMES = [
    {"algorithm": algorithm, "ratio_level": level, "reduction": reduction}
    for algorithm, level, reduction in (
        ("grpo", "decision", "per_sequence"),
        ("dapo", "decision", "per_decision"),
        ("dr_grpo", "decision", "constant"),
        ("ppo", "joint", "per_sequence"),
        ("sapo", "joint", "per_decision"),
        ("gspo", "sequence", "per_sequence"),
        ("gspo", "sequence", "per_decision"),
        ("cispo", "decision", "per_decision"),
    )
]
LOCAL = {"algorithm": "bnpo", "ratio_level": "decision", "reduction": "per_decision_local"}


def values(counts):
    return {field.name: float(getattr(counts, field.name)) for field in fields(counts)}


def gradient_of_split(cuts, names, own=False):
    """The gradient of one step whose prompts are cut into micro-batches; ``own``: each divides by its own counts."""
    whole, policy = worker.batch(), worker.Policy()
    edges = [0, *sorted(cuts), worker.P]
    parts = [whole[a:b] for a, b in pairwise(edges)]
    total = all_reduce_counts(add(*(worker.count_part(part, names) for part in parts)), gradient_reduction="mean")
    for part in parts:
        worker.step_loss(policy, part, None if own else total, names).backward()
    return worker.gradient(policy)


@pytest.mark.parametrize("names", NAMES, ids=lambda names: "-".join(names.values()))
@given(cuts=st.sets(st.integers(1, worker.P - 1)))
@settings(max_examples=15, derandomize=True)
def test_any_split_into_micro_batches_gives_the_gradient_of_the_whole_batch(names, cuts):
    whole = gradient_of_split((), names, own=True)
    assert float(whole.abs().max()) > 0.01
    torch.testing.assert_close(gradient_of_split(cuts, names), whole, atol=1e-12, rtol=0)


def test_the_local_reduction_is_the_mean_over_micro_batches_and_depends_on_the_split():
    whole = worker.batch()
    mask = whole.is_valid
    logprobs = torch.zeros(mask.shape, dtype=F64, requires_grad=True)
    parts, names = [slice(0, 1), slice(1, 4), slice(4, 7)], LOCAL
    total = all_reduce_counts(add(*(worker.count_part(whole[part], names) for part in parts)), gradient_reduction="sum")
    advantages = torch.ones(worker.P, worker.G, dtype=F64)
    loss = sum(
        worker.policy_loss(logprobs[s], logprobs[s].detach(), advantages[s], mask[s], denominator=total.policy, **names)
        for s in parts
    )
    loss.backward()
    # -A * r = -1 for each valid decision: each local mean is -1, and so is the mean of the three.
    assert float(loss.detach()) == pytest.approx(-1.0, abs=1e-14)
    for part in parts:
        each = -1 / 3 / int(mask[part].sum())
        torch.testing.assert_close(logprobs.grad[part][mask[part]], torch.full_like(logprobs[part][mask[part]], each))


def test_golden_counts():
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]])
    returns = torch.tensor([math.nan])
    decision = {"ratio_level": "decision", "reduction": "per_decision"}
    assert values(count(is_valid, returns=returns, **decision)) == {
        "policy": 2.0,
        "kl": 1.0,
        "entropy": 1.0,
        "value": 0.0,
        "supervised": 1.0,
    }
    joint = count(is_valid, ratio_level="joint", reduction="per_decision", kl_reduction="per_decision", examples=9)
    assert values(joint) == {"policy": 1.0, "kl": 2.0, "entropy": 1.0, "value": 1.0, "supervised": 9.0}
    constant = count(is_valid, ratio_level="sequence", reduction="constant", kl_reduction="per_sequence", max_decisions=10)
    assert (float(constant.policy), float(constant.kl)) == (20.0, 2.0)
    for level, wanted in (("decision", 20.0), ("sequence", 20.0), ("joint", 2.0)):
        longest = None if level == "joint" else 10
        both = count(is_valid, ratio_level=level, reduction="constant", kl_reduction="constant", max_decisions=longest)
        assert (float(both.policy), float(both.kl)) == (wanted, wanted)


def test_a_wholly_masked_micro_batch_adds_nothing_and_a_wholly_masked_step_divides_by_one():
    names = {"ratio_level": "decision", "reduction": "per_decision"}
    empty, full = torch.zeros(2, 2, 3, dtype=torch.bool), torch.ones(2, 2, 3, dtype=torch.bool)
    assert float(add(count(empty, **names), count(full, **names)).policy) == 12.0
    assert float(all_reduce_counts(count(empty, **names), gradient_reduction="mean").policy) == 1.0


def test_one_process_divides_by_its_counts_however_gradients_are_reduced():
    counts = count(torch.ones(2, 2, 3, dtype=torch.bool), ratio_level="decision", reduction="per_decision")
    for how in ("sum", "mean"):
        assert values(all_reduce_counts(counts, gradient_reduction=how)) == values(counts)


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path):
    # Loopback, where it has this name: a container's host name need not resolve.
    environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    running = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(tmp_path)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        outcomes = [(process.communicate(timeout=600)[1], process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [code for _, code in outcomes] == [0, 0], outcomes
    whole = gradient_of_split((), worker.PER_DECISION, own=True)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for how in ("sum", "mean"):
            torch.testing.assert_close(found[how], whole, atol=1e-12, rtol=0)


def test_refuses():
    names = {"ratio_level": "decision", "reduction": "per_decision"}
    counts = count(torch.ones(1, 1, 1, dtype=torch.bool), **names)
    with pytest.raises(ValueError, match="at least one micro-batch, got none"):
        add()
    with pytest.raises(ValueError, match="gradient_reduction must be one of sum, mean, got 'average'"):
        all_reduce_counts(counts, gradient_reduction="average")
    with pytest.raises(ValueError, match="max_decisions must be at least the length of a row, 4, got 3"):
        count(torch.ones(1, 1, 4, dtype=torch.bool), ratio_level="decision", reduction="constant", max_decisions=3)
