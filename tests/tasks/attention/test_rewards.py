import math

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt
from tiny_attention import make_batch, make_task, shake
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.edge_distance import distance_to_edge
from grpo_pipeline.tasks.attention.rewards import activation, boundary, diversity, mask_dice

ALL = {"diversity_weight": 0.5, "activation_weight": 0.25, "boundary_weight": 2.0}
NAMES = ("diversity", "activation", "boundary")


def rollouts(actions: Tensor, is_valid: Tensor | None = None) -> Rollouts:
    valid = torch.ones(actions.shape, dtype=torch.bool) if is_valid is None else is_valid
    return Rollouts(actions, torch.zeros(actions.shape), valid)


def draw_points(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 2, generator=generator), torch.rand(*shape, generator=generator) < 0.7


def diversity_loop(points: Tensor, is_valid: Tensor) -> list[list[float]]:
    found = []
    for p in range(points.shape[0]):
        sets = [points[p, g][is_valid[p, g]].tolist() for g in range(points.shape[1])]
        row = []
        for g, own in enumerate(sets):
            others = [other for h, other in enumerate(sets) if h != g and other]
            means = [sum(min(math.dist(x, y) for y in other) for x in own) / len(own) for other in others if own]
            row.append(sum(means) / len(means) if means else 0.0)
        found.append(row)
    return found


def test_diversity_equals_a_naive_loop():
    for shape in ((3, 4, 3), (2, 2, 1), (1, 1, 2), (2, 5, 6)):
        points, is_valid = draw_points(*shape)
        for mask in (torch.ones_like(is_valid), is_valid):
            torch.testing.assert_close(diversity(points, mask), torch.tensor(diversity_loop(points, mask)), atol=1e-6, rtol=0)
    assert torch.equal(diversity(torch.empty(2, 3, 0, 2), torch.ones(2, 3, 0, dtype=torch.bool)), torch.zeros(2, 3))


def test_activation_equals_a_naive_loop():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 3, 16, 16, generator=generator)
    actions = torch.randint(16, (2, 3, 2), generator=generator)
    is_valid = torch.tensor([[[True, True], [True, False], [False, False]]] * 2)
    got = activation(logits, rollouts(actions, is_valid), grid=4)
    for p, g in np.ndindex(2, 3):
        places = [divmod(cell, 4) for cell in actions[p, g][is_valid[p, g]].tolist()]
        values = [float(logits[p, g, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].sigmoid().mean()) for i, j in places]
        assert float(got[p, g]) == pytest.approx(sum(values) / len(values) if values else 0.0, abs=1e-6)


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


def test_every_part_differs_inside_the_group_and_is_0_without_points():
    """A part that is the same for all samples of a core cancels when they are compared (trap 5). 8 x 8 cells, G = 6."""
    task, generator = make_task(patch_size=4, reward=ALL), torch.Generator().manual_seed(0)
    policy, batch = task.build_policy(0), make_batch(task)
    shake(policy)
    context, grouped = task.encode(policy, batch), task.replicate(batch, 6)
    sampled = task.sample(policy, context, 6, temperature=1.0, proposal="policy", generator=generator)
    parts, weights = task.reward(grouped, sampled, task.decode(policy, context, sampled, grouped))
    assert weights == {"class": 1.0, "heatmap": 0.0, "diversity": 0.5, "activation": 0.25, "boundary": 2.0}
    empty = rollouts(torch.empty(4, 6, 0, dtype=torch.int64))
    nothing, _ = task.reward(grouped, empty, task.decode(policy, context, empty, grouped))
    for name in NAMES:
        assert parts[name].shape == (4, 6)
        assert not parts[name].requires_grad
        assert bool((parts[name].amax(1) - parts[name].amin(1) > 1e-3).all()), name
        assert torch.equal(nothing[name], torch.zeros(4, 6)), name
    one = make_task(patch_size=4, reward={"boundary_weight": 1.0})  # a part without weight is not there
    parts, weights = one.reward(grouped, sampled, one.decode(policy, context, sampled, grouped))
    assert parts.keys() == weights.keys() == {"class", "heatmap", "boundary"}


def test_a_margin_that_no_cell_can_feel_is_refused():
    with pytest.raises(ValueError, match="must be more than half a cell = 0.125, got 0.125"):  # no centre is nearer
        make_task(reward={"boundary_weight": 1.0, "boundary_margin": 0.125})
    with pytest.raises(ValueError, match=r"attention.reward.boundary_margin must be more than half a cell = 0.125"):
        make_task(reward={"boundary_weight": 1.0, "boundary_margin": 0.125})
    make_task(reward={"boundary_weight": 1.0, "boundary_margin": 0.13})
    make_task(reward={"boundary_weight": 0.0, "boundary_margin": 0.12})


def test_equals_scipys_distance_transform():
    generator = np.random.default_rng(0)
    for grid in (1, 2, 7, 16):
        cells = generator.random((5, grid, grid)) < 0.8
        cells[0], cells[1] = True, False
        got = distance_to_edge(torch.as_tensor(cells).flatten(1), grid).reshape(5, grid, grid).numpy()
        for row in range(5):
            centres = distance_transform_edt(np.pad(cells[row], 1))[1:-1, 1:-1]
            expected = np.where(cells[row], (centres - 0.5) / grid, 0.0)
            np.testing.assert_allclose(got[row], expected, atol=1e-6)


def test_dice_of_a_mask_golden():
    outline = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[[[1, 0], [1, 0]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]]] * 2).bool()
    # One of two and one beside it: 2 / 4; all: 1; nothing: 0. Without an outline: 0 for every sample.
    assert mask_dice(mask, outline).tolist() == [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]
