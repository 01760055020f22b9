"""Groups of similar size change what is computed, and no score of it."""

from itertools import pairwise, product

import pytest
import tiny_graphs as tiny
import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion import size_groups
from grpo_pipeline.tasks.molecules.diffusion.step_scores import rescored, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import choose_decisions, graphs_at
from grpo_pipeline.tasks.molecules.graphs.components import Components

NODES = 9
SIZES = [6, 9, 1, 4, 4, 2, 9]  # sorting them is not its own inverse


def least_cost(sizes: list[int], nodes: int, copies: int, cut_cost: int) -> int:
    """Try every way to cut the sorted sizes, and not to cut at all."""
    ordered, options = sorted(sizes), [len(sizes) * copies * nodes * (nodes + 1) // 2]
    for mask in range(2 ** (len(ordered) - 1)):
        ends = [i + 1 for i in range(len(ordered) - 1) if mask >> i & 1] + [len(ordered)]
        parts = [ordered[low:high] for low, high in pairwise([0, *ends])]
        options.append(sum(cut_cost + len(part) * copies * max(part) * (max(part) + 1) // 2 for part in parts))
    return min(options)


@pytest.mark.parametrize("cut_cost", [0, 20, 60, 100_000])
def test_the_groups_are_the_cheapest(cut_cost: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(size_groups.CUT_COSTS, "cpu", cut_cost)
    for sizes, copies in product((SIZES, [9, 9, 9], [3], [2, 3, 4, 5, 6, 7, 8]), (1, 3)):
        cost = 0
        for group in size_groups.size_groups(tiny.prompts(sizes, NODES), copies):
            cost += (0 if group.is_whole else cut_cost) + len(group.rows) * copies * group.nodes * (group.nodes + 1) // 2
        assert cost == least_cost(sizes, NODES, copies, cut_cost)


@pytest.mark.parametrize("chunk", [None, 3])
def test_scores_and_gradients_are_those_of_whole_batches(chunk: int | None, monkeypatch: pytest.MonkeyPatch):
    model, reference = tiny.policy(), tiny.policy(seed=1)
    rollouts = choose_decisions(tiny.sample(model, tiny.prompts(SIZES, NODES), 2), 4, generator=tiny.generator())
    weights, found = torch.linspace(-1, 1, rollouts.actions.numel()).view_as(rollouts.actions).double(), []
    for cut_cost in (10**9, 0):
        monkeypatch.setitem(size_groups.CUT_COSTS, "cpu", cut_cost)
        params = tiny.trajectory_params(steps_per_chunk=chunk)
        scores = score_steps(model, rollouts, params=params, temperature=1.0, reference=reference)
        loss = (weights * (scores.logprobs + 2 * scores.entropy + 3 * scores.kl)).sum()
        found.append((vars(scores), torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


def test_a_draw_in_groups_is_scored_by_whole_batches_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch):
    """The network computes no more than the entries of the groups; samples may share their start."""
    model, seen = tiny.policy(), []
    forward = model.denoiser.forward

    def counted(noisy: Components[Tensor], *rest: Tensor) -> Components[Tensor]:
        seen.append(noisy.atoms.numel() + noisy.bonds.numel())
        return forward(noisy, *rest)

    monkeypatch.setattr(model.denoiser, "forward", counted)
    monkeypatch.setitem(size_groups.CUT_COSTS, "cpu", 0)
    drawn = tiny.sample(model, tiny.prompts(SIZES, NODES), 3, start="per_group")
    assert sum(seen) == 5 * 3 * sum(size * (size + 1) // 2 for size in SIZES)  # 5 steps, 3 samples
    start = drawn.bonds[:, :, -1]
    assert torch.equal(start, start[:, :1].expand_as(start))
    assert start.any()
    assert drawn.atoms.shape == (7, 3, 6, NODES)
    assert drawn.bonds.shape[-1] == NODES * (NODES - 1) // 2
    assert graphs_at(drawn, 0).sizes.tolist() == [size for size in SIZES for _ in range(3)]  # refuses entries outside a graph
    monkeypatch.setitem(size_groups.CUT_COSTS, "cpu", 10**9)
    again = rescored(model, drawn, params=tiny.trajectory_params(), temperature=1.0)
    torch.testing.assert_close(again.logprobs, drawn.logprobs, rtol=1e-10, atol=1e-10)
