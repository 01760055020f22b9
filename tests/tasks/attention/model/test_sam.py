import pytest
import torch
from tiny_attention import GRID, SIZE, model_params, shake
from torch import Tensor

from grpo_pipeline.tasks.attention.model.sam import Sam, cell_centres


@pytest.fixture
def sam() -> Sam:
    torch.manual_seed(0)
    model = Sam(model_params(), SIZE).eval()
    shake(model, scale=0.3)  # logits of order 1: mixed images or sets would show
    return model


def features(n: int = 2) -> Tensor:
    return torch.randn(n, model_params().feature_channels, GRID, GRID, generator=torch.Generator().manual_seed(1))


def points(n: int = 2, group: int = 3, k: int = 3) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(2))


def test_cell_centres_golden():
    # Cell 6 of a 4 x 4 grid is row 1, column 2: x = 2.5 / 4, y = 1.5 / 4.
    assert cell_centres(torch.tensor([0, 6, 15]), 4).tolist() == [[0.125, 0.125], [0.625, 0.375], [0.875, 0.875]]


@torch.no_grad()
def test_point_lights_its_cell(sam: Sam):
    sam.net.prompt_encoder.point_embed[1].weight.zero_()
    encoded = sam.encode_points(cell_centres(torch.arange(GRID * GRID), GRID))[:-1]
    dense = sam.dense_encoding()[0]
    for i in range(GRID):
        for j in range(GRID):
            assert torch.equal(encoded[i * GRID + j], dense[:, i, j]), (i, j)


@torch.no_grad()
def test_dense_encoding_is_that_of_transformers(sam: Sam):
    theirs = sam.net.get_image_wide_positional_embeddings()
    torch.testing.assert_close(sam.dense_encoding(), theirs, atol=1e-6, rtol=0)


@torch.no_grad()
def test_decodes_as_transformers_does(sam: Sam):
    image, sets = features(), points()
    theirs = sam.net(
        image_embeddings=image,
        input_points=sets * SIZE - 0.5,
        input_labels=torch.ones(sets.shape[:3], dtype=torch.int64),
        multimask_output=False,
    )
    torch.testing.assert_close(sam.decode(image, sets).mask_logits, theirs.pred_masks[:, :, 0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_decodes_without_points(sam: Sam):
    none = sam.decode(features(), points(k=0))
    assert none.mask_logits.shape == (2, 3, 4 * GRID, 4 * GRID)
    assert torch.isfinite(none.mask_logits).all()
    assert torch.equal(none.mask_logits[:, 0], none.mask_logits[:, 1])  # no prompt: nothing tells the sets apart
    assert not torch.allclose(none.mask_logits, sam.decode(features(), points()).mask_logits, atol=0.1)


def test_refuses_an_image_that_is_no_multiple_of_the_patch():
    with pytest.raises(ValueError, match=r"multiple of attention.model.patch_size = 8, got 36; change attention.data.image_size"):
        Sam(model_params(), 36)


def test_untrained_features_carry_the_image(sam: Sam):
    # transformers' default initializer_range of 1e-10 gave features of size 1e-21.
    images = torch.randn(2, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    assert float(sam.encode(images).std().detach()) > 0.1
