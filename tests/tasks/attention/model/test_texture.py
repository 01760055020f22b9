import math

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.model.decoders import FilterBank


def bank(channels: int = 3) -> FilterBank:
    torch.manual_seed(0)
    return FilterBank(channels)


def images(size: int = 16) -> Tensor:
    return torch.randn(2, 1, size, size, generator=torch.Generator().manual_seed(1))


def described(log_energy: list[float], level: float) -> Tensor:
    # The normalised spectrum (biased variance, as LayerNorm has it), its mean + 1, the level.
    mean = sum(log_energy) / len(log_energy)
    deviation = math.sqrt(sum((e - mean) ** 2 for e in log_energy) / len(log_energy) + 1e-5)
    return torch.tensor([*((e - mean) / deviation for e in log_energy), mean + 1, level])


@torch.no_grad()
def test_cells_equal_a_naive_loop():
    filters, pictures, grid, cell = bank(), images(), 4, 4
    responses = F.conv2d(F.pad(pictures, (2, 2, 2, 2)), filters.filters.weight)
    got = filters.describe_cells(pictures, grid)
    assert got.shape == (2, 5, grid, grid)
    for p in range(2):
        for i in range(grid):
            for j in range(grid):
                rows = slice(max(0, (i - 1) * cell), (i + 2) * cell)
                columns = slice(max(0, (j - 1) * cell), (j + 2) * cell)
                energy = [math.log(float(r[rows, columns].square().mean()) + 1e-3) for r in responses[p]]
                expected = described(energy, float(pictures[p, 0, rows, columns].mean()))
                torch.testing.assert_close(got[p, :, i, j], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_patches_equal_a_naive_loop():
    filters, patches = bank(), images(8)
    got = filters.describe_patches(patches)
    for p in range(2):
        window = patches[p, 0].unfold(0, 5, 1).unfold(1, 5, 1)  # [4, 4, 5, 5], no padding
        responses = [(window * filters.filters.weight[c, 0]).sum((2, 3)) for c in range(3)]
        energy = [math.log(float(r.square().mean()) + 1e-3) for r in responses]
        torch.testing.assert_close(got[p], described(energy, float(patches[p].mean())), atol=1e-5, rtol=0)


def test_filters_start_blind_to_brightness():
    weight = bank().filters.weight.detach()
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.ones(3))


def test_empty_patch_has_a_finite_gradient():
    filters = bank()
    got = filters.describe_patches(torch.zeros(1, 1, 8, 8))
    got.sum().backward()
    assert math.isclose(float(got[0, 3].detach()), math.log(1e-3) + 1, rel_tol=1e-6)
    assert torch.equal(filters.filters.weight.grad, torch.zeros_like(filters.filters.weight))
