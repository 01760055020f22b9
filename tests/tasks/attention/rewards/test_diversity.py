import math

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.rewards.diversity import diversity


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
