import math

import numpy as np
import torch
from tiny_attention import model_params
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.model.class_decoder.glimpse import GlimpseDecoder, crop_patches
from grpo_pipeline.tasks.attention.model.class_decoder.global_decoder import GlobalDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import pool_evidence
from grpo_pipeline.tasks.attention.model.filter_bank import FilterBank

SIDE = 24


def images(n: int = 2) -> Tensor:
    return torch.randn(n, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def naive_patch(image: Tensor, x: float, y: float, size: int) -> Tensor:
    """Copy pixel by pixel; the pixel of the point is at (size // 2, size // 2) of the patch."""
    column, row = (min(SIDE - 1, int(value * SIDE)) for value in (x, y))
    patch = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            r, c = row - size // 2 + i, column - size // 2 + j
            if 0 <= r < SIDE and 0 <= c < SIDE:
                patch[i, j] = image[0, r, c]
    return patch


def test_patches_equal_a_naive_loop():
    points = torch.tensor([[[0.5, 0.25], [0.0, 0.0], [1.0, 1.0]], [[0.99, 0.02], [0.3, 0.9], [0.0, 0.5]]])
    pictures = images()
    for size in (4, 7, 16):
        got = crop_patches(pictures, points, size)
        assert got.shape == (2, 3, 1, size, size)
        for p, m in np.ndindex(2, 3):
            assert torch.equal(got[p, m, 0], naive_patch(pictures[p], *points[p, m].tolist(), size)), (p, m)


def test_padding_is_not_pooled_and_a_set_of_none_is_0():
    evidence = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([1, 2, 3, 4, 2])
    is_point = torch.arange(4) < counts[:, None]
    pooled = pool_evidence(evidence.requires_grad_(), is_point)
    alone = torch.stack([pool_evidence(row[:n]) for row, n in zip(evidence, counts, strict=True)])
    torch.testing.assert_close(pooled, alone, atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(pooled.sum(), evidence)
    assert torch.equal(gradient != 0, is_point)
    of_none = pool_evidence(evidence, torch.zeros(5, 4, dtype=torch.bool))
    assert of_none.tolist() == [0.0] * 5
    assert not torch.autograd.grad(of_none.sum(), evidence)[0].any()


def make_glimpse(**changes: object) -> GlimpseDecoder:
    torch.manual_seed(0)
    return GlimpseDecoder(model_params(class_decoder={"size": 6, **changes}).class_decoder)


@torch.no_grad()
def test_glimpse_does_not_mix_images_or_sets_and_answers_its_prior_without_points():
    decoder, pictures = make_glimpse(), images()
    points = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    together = decoder(pictures, points)
    for p, g in np.ndindex(2, 3):
        alone = decoder(pictures[p : p + 1], points[p : p + 1, g : g + 1])
        torch.testing.assert_close(together[p, g], alone[0, 0], atol=1e-6, rtol=0)
    decoder.prior.fill_(0.7)
    assert torch.equal(decoder(images(), torch.empty(2, 3, 0, 2)), torch.full((2, 3), 0.7))


@torch.no_grad()
def test_involvement_is_the_mean_probability_of_the_valid_patches():
    decoder, pictures = make_glimpse(), images()
    decoder.involvement_prior.fill_(0.4)
    points = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(1))
    valid = torch.tensor([[True, False, True], [False, True, False]])
    # One point alone: its evidence is the class logit, whose prior is 0 here.
    evidence = torch.stack([decoder(pictures, points[:, m : m + 1, None])[:, 0] for m in range(3)], dim=1)
    probs = (evidence + 0.4).sigmoid()
    expected = torch.stack([(probs[0, 0] + probs[0, 2]) / 2, probs[1, 1]])
    torch.testing.assert_close(decoder.estimate_involvement(pictures, points, valid), expected, atol=1e-6, rtol=0)


def test_global_decoder_depends_on_each_token_alone():
    torch.manual_seed(0)
    decoder = GlobalDecoder(16)
    token = torch.randn(2, 3, 16, requires_grad=True)
    logits = decoder(token)
    assert logits.shape == (2, 3)
    logits[1, 2].backward()
    reached = token.grad.abs().sum(-1) > 0
    assert reached.tolist() == [[False] * 3, [False, False, True]]


def bank(channels: int = 3) -> FilterBank:
    torch.manual_seed(0)
    return FilterBank(channels)


def texture_images(size: int = 16) -> Tensor:
    return torch.randn(2, 1, size, size, generator=torch.Generator().manual_seed(1))


def described(log_energy: list[float], level: float) -> Tensor:
    # The normalised spectrum (biased variance, as LayerNorm has it), its mean + 1, the level.
    mean = sum(log_energy) / len(log_energy)
    deviation = math.sqrt(sum((e - mean) ** 2 for e in log_energy) / len(log_energy) + 1e-5)
    return torch.tensor([*((e - mean) / deviation for e in log_energy), mean + 1, level])


@torch.no_grad()
def test_cells_equal_a_naive_loop():
    filters, pictures, grid, cell = bank(), texture_images(), 4, 4
    responses = F.conv2d(F.pad(pictures, (2, 2, 2, 2)), filters.filters.weight)
    got = filters.describe_cells(pictures, grid)
    assert got.shape == (2, 5, grid, grid)
    for p, i, j in np.ndindex(2, grid, grid):
        rows, columns = (slice(max(0, (at - 1) * cell), (at + 2) * cell) for at in (i, j))
        energy = [math.log(float(r[rows, columns].square().mean()) + 1e-3) for r in responses[p]]
        expected = described(energy, float(pictures[p, 0, rows, columns].mean()))
        torch.testing.assert_close(got[p, :, i, j], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_texture_patches_equal_a_naive_loop():
    filters, patches = bank(), texture_images(8)
    got = filters.describe_patches(patches)
    for p in range(2):
        window = patches[p, 0].unfold(0, 5, 1).unfold(1, 5, 1)  # [4, 4, 5, 5], no padding
        responses = [(window * filters.filters.weight[c, 0]).sum((2, 3)) for c in range(3)]
        energy = [math.log(float(r.square().mean()) + 1e-3) for r in responses]
        torch.testing.assert_close(got[p], described(energy, float(patches[p].mean())), atol=1e-5, rtol=0)


def test_filters_start_blind_to_brightness_and_an_empty_patch_has_a_finite_gradient():
    filters = bank()
    weight = filters.filters.weight.detach()
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.ones(3))
    got = filters.describe_patches(torch.zeros(1, 1, 8, 8))
    got.sum().backward()
    assert math.isclose(float(got[0, 3].detach()), math.log(1e-3) + 1, rel_tol=1e-6)
    assert torch.equal(filters.filters.weight.grad, torch.zeros_like(filters.filters.weight))
