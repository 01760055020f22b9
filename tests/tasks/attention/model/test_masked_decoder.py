import pytest
import torch
from tiny_attention import GRID, SIZE, model_params, shake
from torch import Tensor

from grpo_pipeline.tasks.attention.model.sam import Sam, two_way


@pytest.fixture
def sam() -> Sam:
    torch.manual_seed(0)
    model = Sam(model_params(), SIZE).eval()
    shake(model, scale=0.3)
    return model


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def points(*shape: int) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_with_all_tokens_it_is_the_transformer_of_transformers(sam: Sam):
    channels = model_params().feature_channels
    tokens, image, positions = normal(2, 3, 5, channels, seed=1), normal(6, channels, GRID, GRID, seed=2), sam.dense_encoding()
    positions = positions.expand_as(image)
    transformer = sam.net.mask_decoder.transformer
    theirs = transformer(
        point_embeddings=tokens, image_embeddings=image, image_positional_embeddings=positions, attention_similarity=None
    )
    ours = two_way(transformer, tokens, image, positions, torch.ones(2, 3, 5, dtype=torch.bool))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("further", [0, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_padding_changes_nothing(sam: Sam, count: int, further: int):
    prompts = normal(2, further, model_params().feature_channels, seed=4) if further else None
    image, sets = normal(2, model_params().feature_channels, GRID, GRID, seed=1), points(2, 3, 3)
    is_point = (torch.arange(3) < count).expand(2, 3, 3)
    alone = sam.decode(image, sets[:, :, :count], prompts)
    padded = sam.decode(image, sets, prompts, is_point=is_point)
    torch.testing.assert_close(padded.mask_logits, alone.mask_logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded.token, alone.token, atol=1e-5, rtol=0)
    whole = sam.decode(image, sets, prompts)
    assert not torch.allclose(whole.mask_logits, alone.mask_logits, atol=0.1)  # the points that were masked do count


@torch.no_grad()
def test_sets_of_different_sizes_share_a_call(sam: Sam):
    image, sets = normal(2, model_params().feature_channels, GRID, GRID, seed=1), points(2, 3, 3)
    counts = torch.tensor([[1, 2, 3], [3, 1, 2]])
    together = sam.decode(image, sets, is_point=torch.arange(3) < counts[..., None])
    for p in range(2):
        for g in range(3):
            alone = sam.decode(image[p : p + 1], sets[p : p + 1, g : g + 1, : counts[p, g]])
            torch.testing.assert_close(together.mask_logits[p, g], alone.mask_logits[0, 0], atol=1e-5, rtol=0)


def test_no_gradient_reaches_a_padded_point(sam: Sam):
    sets = points(1, 2, 3).requires_grad_()
    is_point = torch.tensor([[[True, False, False], [True, True, False]]])
    image = normal(1, model_params().feature_channels, GRID, GRID, seed=1)
    decoded = sam.decode(image, sets, is_point=is_point)
    (gradient,) = torch.autograd.grad(decoded.mask_logits.square().mean() + decoded.token.square().mean(), sets)
    assert bool(gradient.isfinite().all())
    assert torch.equal(gradient.abs().sum(-1) > 0, is_point)
