import pytest
import torch
from tiny_graphs import generator, policy, prompts, sample, trajectory_params

from grpo_pipeline.tasks.molecules.diffusion.step_scores import rescored
from grpo_pipeline.tasks.molecules.diffusion.trajectories import graphs_at
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.graphs.components import Components


@pytest.mark.parametrize(("start", "different"), [("per_group", 1), ("independent", 4)])
def test_a_group_of_any_size_starts_from_one_graph_or_each_sample_from_its_own(start: str, different: int) -> None:
    drawn = sample(policy(), prompts([5, 5], 5), 4, start=start)
    starts = [{tuple(row) for row in group.tolist()} for group in drawn.bonds[:, :, 5]]
    assert [len(group) for group in starts] == [different] * 2
    assert not starts[0] & starts[1]
    assert len({tuple(row) for row in drawn.bonds[0, :, 4].tolist()}) > 1  # they part at the first step
    model = policy()
    drawn = sample(model, prompts([3, 5], 5), 1, start=start)
    assert drawn.atoms.shape == (2, 1, 6, 5)
    again = rescored(model, drawn, params=trajectory_params(start=start), temperature=1.0)
    torch.testing.assert_close(again.logprobs, drawn.logprobs, rtol=1e-10, atol=1e-10)
    # 3 and 5 nodes, each with a class of atom and of charge, and 3 and 10 pairs.
    mean = sample(model, prompts([3, 5], 5), 1, start=start, entry_reduction="mean")
    counts = torch.tensor([9.0, 20.0], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(mean.logprobs * counts, drawn.logprobs, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_drawn_is_refused_and_large_vocabularies_fit_in_a_byte() -> None:
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        sample(policy(), prompts([2], 2), 0)
    with pytest.raises(ValueError, match="a vocabulary must have at most 256 classes, got 257"):
        sample(policy(classes=Components(257, 1, 2)), prompts([2], 2))
    with pytest.raises(ValueError, match="temperature must be above 0"):
        sample_trajectories(policy(), prompts([2], 2), 2, params=trajectory_params(), temperature=0.0, generator=generator())
    rollouts = sample(policy(classes=Components(256, 1, 2)), prompts([8] * 20, 8), 4)
    assert int(rollouts.atoms.max()) > 127
    graphs_at(rollouts, 0)
