import numpy as np
import pytest
import torch
from tiny_graphs import generator, policy, prompts, sample

from grpo_pipeline.tasks.molecules.diffusion.trajectories import choose_decisions, graphs_at, transitions_of
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entries_of


def test_graphs_of_every_time_are_graphs_of_the_size_that_was_wanted() -> None:
    rollouts = sample(policy(), prompts([4, 1, 2], 4), 2)
    assert {part.dtype for part in (rollouts.atoms, rollouts.charges, rollouts.bonds)} == {torch.uint8}
    for s in range(rollouts.steps + 1):
        graphs = graphs_at(rollouts, s)  # checks symmetry and padding
        assert graphs.sizes.tolist() == [4, 4, 1, 1, 2, 2]
        assert torch.equal(entries_of(graphs).bonds.view(3, 2, -1), rollouts.bonds[:, :, s].long())


def test_a_decision_goes_from_t_to_t_minus_1() -> None:
    rollouts = sample(policy(), prompts([3, 2], 3), 2)
    assert rollouts.actions[1, 1].tolist() == [5, 4, 3, 2, 1]
    before, after, t = transitions_of(rollouts, slice(1, 3))
    assert t.tolist() == [4, 3] * 4
    for row, (p, g, step) in enumerate(np.ndindex(2, 2, 2)):
        for name in ("atoms", "charges", "bonds"):
            states = getattr(rollouts, name)[p, g]
            assert torch.equal(getattr(before, name)[row], states[4 - step])
            assert torch.equal(getattr(after, name)[row], states[3 - step])


def test_chosen_decisions_are_shared_by_a_group_and_cover_all_times_alike() -> None:
    rollouts = sample(policy(), prompts([2] * 400, 2), 2)
    chosen = choose_decisions(rollouts, 2, generator=generator())
    assert torch.equal(chosen.actions[:, 0], chosen.actions[:, 1])
    assert bool((chosen.actions[..., 0] > chosen.actions[..., 1]).all())  # in order, none twice
    counts = torch.bincount(chosen.actions[:, 0].flatten(), minlength=6)[1:]
    # 400 draws of 2 out of 5: 160 of each, standard deviation sqrt(400 * 0.4 * 0.6) = 10
    assert bool(((counts - 160).abs() < 40).all())
    index = rollouts.steps - chosen.actions
    assert torch.equal(chosen.logprobs, rollouts.logprobs.gather(2, index))
    assert torch.equal(chosen.atoms, rollouts.atoms)
    assert torch.equal(choose_decisions(rollouts, 5, generator=generator()).actions, rollouts.actions)
    for count in (0, 6):
        with pytest.raises(ValueError, match=f"count must be between 1 and the 5 decisions of a trajectory, got {count}"):
            choose_decisions(rollouts, count, generator=generator())
