import importlib.util
import math
import os
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise, product
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
        ("grpo", "decision", "per_sequence"), ("dapo", "decision", "per_decision"), ("dr_grpo", "decision", "constant"),
        ("ppo", "joint", "per_sequence"), ("sapo", "joint", "per_decision"), ("gspo", "sequence", "per_sequence"),
        ("gspo", "sequence", "per_decision"), ("cispo", "decision", "per_decision"),
    )
]  # fmt: skip
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
    mask = worker.batch().is_valid
    logprobs = torch.zeros(mask.shape, dtype=F64, requires_grad=True)
    parts, names = [slice(0, 1), slice(1, 4), slice(4, 7)], LOCAL
    total = all_reduce_counts(add(*(worker.count_part(worker.batch()[part], names) for part in parts)), gradient_reduction="sum")
    for s in parts:
        data = logprobs[s], logprobs[s].detach(), torch.ones(mask[s].shape[:2], dtype=F64), mask[s]
        loss = worker.policy_loss(*data, denominator=total.policy, **names)
        # -A * r = -1 for each valid decision: each local mean is -1, and so is the mean of the three.
        assert float(loss.detach()) == pytest.approx(-1 / 3, abs=1e-14)
        loss.backward()
        torch.testing.assert_close(logprobs.grad[s], mask[s] * (-1 / 3 / mask[s].sum().double()))


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
    counts = count(is_valid, **names)
    assert tuple(values(counts).values()) == wanted
    empty = count(is_valid & False, **names)
    assert values(add(counts, counts, empty)) == {name: 2 * x + values(empty)[name] for name, x in values(counts).items()}
    for how in ("sum", "mean"):  # one process divides by its counts however gradients are reduced
        for raw in (counts, empty):
            assert values(all_reduce_counts(raw, gradient_reduction=how)) == {n: max(1.0, x) for n, x in values(raw).items()}


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path):
    # Loopback, where it has this name: a container's host name need not resolve.
    environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
    commands = [[sys.executable, str(WORKER), str(rank), "2", str(tmp_path)] for rank in range(2)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for command in commands]
    try:
        outcomes = [(process.communicate(timeout=600)[1], process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [code for _, code in outcomes] == [0, 0], outcomes
    whole = gradient_of_split((), worker.PER_DECISION, own=True)
    for rank, how in product(range(2), ("sum", "mean")):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[how]
        torch.testing.assert_close(found, whole, atol=1e-12, rtol=0)


def test_refuses():
    names = {"ratio_level": "decision", "reduction": "per_decision"}
    counts = count(torch.ones(1, 1, 1, dtype=torch.bool), **names)
    with pytest.raises(ValueError, match="at least one micro-batch, got none"):
        add()
    with pytest.raises(ValueError, match="gradient_reduction must be one of sum, mean, got 'average'"):
        all_reduce_counts(counts, gradient_reduction="average")
    with pytest.raises(ValueError, match="max_decisions must be at least the length of a row, 4, got 3"):
        count(torch.ones(1, 1, 4, dtype=torch.bool), ratio_level="decision", reduction="constant", max_decisions=3)
