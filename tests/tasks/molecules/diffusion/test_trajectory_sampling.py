import pytest
import torch
from tiny_graphs import generator, policy, prompts, sample, skewed_limit, trajectory_params

from grpo_pipeline.tasks.molecules.diffusion.trajectories import graphs_at
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.graphs.graphs import Components, make_prompts


def test_the_same_generator_draws_the_same_and_the_global_state_stays() -> None:
    model, wanted = policy(), prompts([4, 2], 4)
    before = torch.random.get_rng_state()
    one, same, other = (sample(model, wanted, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.bonds, same.bonds)
    assert torch.equal(one.logprobs, same.logprobs)
    assert not torch.equal(one.bonds, other.bonds)
    assert not one.logprobs.requires_grad


def test_a_group_starts_from_one_graph_or_each_sample_from_its_own() -> None:
    model, wanted, noise = policy(), prompts([5, 5], 5), 5
    shared, own = (sample(model, wanted, 4, start=start) for start in ("per_group", "independent"))
    for rollouts, is_shared in ((shared, True), (own, False)):
        for p in range(2):
            starts = {tuple(row) for row in rollouts.bonds[p, :, noise].tolist()}
            assert (len(starts) == 1) is is_shared
    assert not torch.equal(shared.bonds[0, 0, noise], shared.bonds[1, 0, noise])
    assert len({tuple(row) for row in shared.bonds[0, :, noise - 1].tolist()}) > 1  # they part at the first step


def test_the_start_is_drawn_from_the_limits() -> None:
    rollouts = sample(policy(steps=1), prompts([3] * 500, 3), 2)
    found = torch.bincount(rollouts.atoms[:, :, 1].flatten(), minlength=3).double()
    wanted = skewed_limit(3) * 3000
    # standard deviation of a count: at most sqrt(3000 / 4) = 27
    assert bool(((found - wanted).abs() < 110).all())


def test_conditions_reach_the_network() -> None:
    """From the same noise the first step has other probabilities."""
    model = policy(conditions=1)
    near, far = (sample(model, make_prompts(torch.tensor([3]), 3, torch.tensor([[value]]))) for value in (-3.0, 3.0))
    assert torch.equal(near.bonds[:, :, 5], far.bonds[:, :, 5])
    assert bool((near.logprobs[..., 0] - far.logprobs[..., 0]).abs().gt(1e-3).all())


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        sample(policy(), prompts([2], 2), 0)
    wide = policy(classes=Components(257, 1, 2))
    with pytest.raises(ValueError, match="a vocabulary must have at most 256 classes, got 257"):
        sample(wide, prompts([2], 2))
    with pytest.raises(ValueError, match="temperature must be above 0"):
        sample_trajectories(policy(), prompts([2], 2), 2, params=trajectory_params(), temperature=0.0, generator=generator())


def test_large_vocabularies_keep_their_classes_in_a_byte() -> None:
    rollouts = sample(policy(classes=Components(256, 1, 2)), prompts([8] * 20, 8), 4)
    assert int(rollouts.atoms.max()) > 127
    graphs_at(rollouts, 0)
