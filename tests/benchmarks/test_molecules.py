"""The benchmark measures what it says: the plain loop computes the same, and ratios are taken within rounds."""

from dataclasses import replace

import pytest
import torch
from benchmark_scripts import load_benchmark

from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import make_prompts

bench = load_benchmark("molecules")

from molecule_contenders import agreement  # noqa: E402
from molecule_contenders.plain_loop import PlainLoop  # noqa: E402
from molecule_contenders.workload import Workload  # noqa: E402

TINY = Workload(nodes=4, steps=5, graphs=2, steps_per_chunk=2, network=bench.TINY)


@pytest.mark.parametrize(("nodes", "steps", "chunk"), [(5, 4, 3), (2, 6, 1), (1, 3, 5)])
def test_the_plain_loop_has_our_log_probabilities_and_gradient(nodes: int, steps: int, chunk: int) -> None:
    work = replace(TINY, nodes=nodes, steps=steps, steps_per_chunk=chunk)
    found = agreement.distances(work)
    assert len(found) == 4
    assert max(found.values()) < 1e-5
    agreement.check(found)


@pytest.mark.parametrize("t", [1, 3, 5])
def test_dense_matrices_give_the_reverse_step_of_every_class(t: int) -> None:
    plain, rollouts = PlainLoop(TINY), TINY.rollouts
    entries = Components(*(part[0, 0, t].long() for part in (rollouts.atoms, rollouts.charges, rollouts.bonds)))
    alone = make_prompts(torch.tensor([4]), 4)
    ours = TINY.policy.step_log_probs(entries.each(lambda part: part[None]), alone, torch.tensor([t]))
    for found, wanted in zip(plain.log_probs(entries, t), ours, strict=True):
        assert torch.allclose(found, wanted[0].double(), atol=1e-5)
        assert torch.allclose(found.exp().sum(-1), torch.ones(len(found), dtype=torch.float64))
