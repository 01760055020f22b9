import pytest
import torch
from tiny_attention import make_task
from tiny_objectives import rollouts

from grpo_pipeline.tasks.attention.rewards.boundary import boundary


def test_boundary_golden():
    # 5 x 5 cells, region = the inner 3 x 3: the rim is 0.1 of the side from the edge, the middle 0.3. Margin 0.2: the rim costs
    # 1 - 0.1 / 0.2 = 1/2, the middle nothing.
    region = torch.zeros(1, 5, 5, dtype=torch.bool)
    region[0, 1:4, 1:4] = True
    actions = torch.tensor([[[12, 12], [12, 6], [6, 8]]])
    got = boundary(region.flatten(1), rollouts(actions), grid=5, margin=0.2)
    torch.testing.assert_close(got, torch.tensor([[0.0, -0.25, -0.5]]))
    is_valid = torch.tensor([[[True, False], [True, False], [False, False]]])
    masked = boundary(region.flatten(1), rollouts(actions, is_valid), grid=5, margin=0.2)
    torch.testing.assert_close(masked, torch.tensor([[0.0, 0.0, 0.0]]))


def test_a_margin_that_no_cell_can_feel_is_refused():
    with pytest.raises(ValueError, match="must be more than half a cell = 0.125, got 0.125"):  # no centre is nearer
        make_task(reward={"boundary": {"weight": 1.0, "margin": 0.125}})
    with pytest.raises(ValueError, match=r"attention.reward.boundary.margin must be more than half a cell = 0.125"):
        make_task(reward={"boundary": {"weight": 1.0, "margin": 0.125}})
    make_task(reward={"boundary": {"weight": 1.0, "margin": 0.13}})
    make_task(reward={"boundary": None})
