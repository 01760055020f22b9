"""A SAM with random weights starts as one that segment-anything builds."""

import pytest
import torch
from sam_oracle import import_original
from tiny_attention import GRID, SIZE, model_params, shake
from torch import Tensor, nn

from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.sam import Sam, cell_centres
from grpo_pipeline.tasks.attention.model.two_way_transformer import two_way


@pytest.fixture
def sam() -> Sam:
    torch.manual_seed(0)
    model = Sam(model_params(), SIZE).eval()
    shake(model, scale=0.3)  # logits of order 1: mixed images or sets would show
    return model


def features(n: int = 2) -> Tensor:
    return normal(n, model_params().mask_decoder.channels, GRID, GRID, seed=1)


def points(n: int = 2, group: int = 3, k: int = 3) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_point_lights_its_cell_and_untrained_features_carry_the_image(sam: Sam):
    sam.net.prompt_encoder.point_embed[1].weight.zero_()
    encoded = sam.encode_points(cell_centres(torch.arange(GRID * GRID), GRID))[:-1]
    assert torch.equal(encoded, sam.dense_encoding()[0].flatten(1).T)
    # transformers' default initializer_range of 1e-10 gave features of size 1e-21.
    assert float(sam.encode(normal(2, 1, SIZE, SIZE, seed=3)).std()) > 0.1


@torch.no_grad()
def test_decodes_as_transformers_does_and_without_points(sam: Sam):
    image, sets = features(), points()
    theirs = sam.net(
        image_embeddings=image,
        input_points=sets * SIZE - 0.5,
        input_labels=torch.ones(sets.shape[:3], dtype=torch.int64),
        multimask_output=False,
    )
    torch.testing.assert_close(sam.decode(image, sets).mask_logits, theirs.pred_masks[:, :, 0], atol=1e-5, rtol=0)
    none = sam.decode(image, points(k=0)).mask_logits
    assert none.shape == (2, 3, 4 * GRID, 4 * GRID)
    assert torch.isfinite(none).all()
    assert torch.equal(none[:, 0], none[:, 1])  # no prompt: nothing tells the sets apart
    assert not torch.allclose(none, sam.decode(image, sets).mask_logits, atol=0.1)


def test_refuses_an_image_that_is_no_multiple_of_the_patch():
    with pytest.raises(ValueError, match=r"multiple of attention.model.patch_size = 8, got 36; change attention.data.image_size"):
        Sam(model_params(), 36)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_with_all_tokens_it_is_the_transformer_of_transformers(sam: Sam):
    channels = model_params().mask_decoder.channels
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
def test_sets_of_different_sizes_share_a_call(sam: Sam, further: int):
    prompts = normal(2, further, model_params().mask_decoder.channels, seed=4) if further else None
    image, sets = features(), points()
    counts = torch.tensor([[1, 2, 3], [3, 1, 2]])
    together = sam.decode(image, sets, prompts, is_point=torch.arange(3) < counts[..., None])
    for p in range(2):
        for g in range(3):
            own = None if prompts is None else prompts[p : p + 1]
            alone = sam.decode(image[p : p + 1], sets[p : p + 1, g : g + 1, : counts[p, g]], own)
            torch.testing.assert_close(together.mask_logits[p, g], alone.mask_logits[0, 0], atol=1e-5, rtol=0)
            torch.testing.assert_close(together.token[p, g], alone.token[0, 0], atol=1e-5, rtol=0)
    whole = sam.decode(image, sets, prompts)
    assert not torch.allclose(whole.mask_logits, together.mask_logits, atol=0.1)  # the points that were masked do count


def test_no_gradient_reaches_a_padded_point(sam: Sam):
    sets = points(1, 2).requires_grad_()
    is_point = torch.tensor([[[True, False, False], [True, True, False]]])
    decoded = sam.decode(features(1), sets, is_point=is_point)
    (gradient,) = torch.autograd.grad(decoded.mask_logits.square().mean() + decoded.token.square().mean(), sets)
    assert bool(gradient.isfinite().all())
    assert torch.equal(gradient.abs().sum(-1) > 0, is_point)


SAM_START_SIZE, PATCH, WIDTH, CHANNELS, LAYERS, HEADS = 128, 8, 48, 32, 2, 4
SAM_START_GRID = SAM_START_SIZE // PATCH


def default_params() -> ModelParams:
    encoder = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "window": 4}
    decoder = {"channels": CHANNELS, "layers": LAYERS, "heads": HEADS}
    return model_params(patch_size=PATCH, encoder=encoder, mask_decoder=decoder)


def published() -> nn.ModuleDict:
    """Return segment-anything's three boxes at the size of ours."""
    original = import_original()
    torch.manual_seed(1)
    sizes = {"depth": LAYERS, "embedding_dim": CHANNELS, "mlp_dim": 2 * CHANNELS, "num_heads": HEADS}
    encoder = original.ImageEncoderViT(
        img_size=SAM_START_SIZE, patch_size=PATCH, in_chans=1, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, mlp_ratio=2,
        out_chans=CHANNELS, qkv_bias=True, use_rel_pos=True, window_size=4, global_attn_indexes=(LAYERS - 1,),
    )  # fmt: skip
    prompt = original.PromptEncoder(CHANNELS, (SAM_START_GRID, SAM_START_GRID), (SAM_START_SIZE, SAM_START_SIZE), mask_in_chans=4)
    decoder = original.MaskDecoder(
        transformer_dim=CHANNELS, transformer=original.TwoWayTransformer(**sizes), iou_head_hidden_dim=CHANNELS
    )
    return nn.ModuleDict({"encoder": encoder, "prompt": prompt, "decoder": decoder})


def spreads(module: nn.Module) -> dict[tuple[int, ...], tuple[float, float]]:
    """Return shape -> (standard deviation, largest absolute value) of all weights of that shape with enough numbers to tell."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for name, weight in module.named_parameters():
        if weight.numel() >= 300 and "pos" not in name:
            by_shape.setdefault(tuple(weight.shape), []).append(weight.detach().flatten())
    joined = {shape: torch.cat(weights) for shape, weights in by_shape.items()}
    return {shape: (float(weight.std()), float(weight.abs().max())) for shape, weight in joined.items()}


def test_weights_are_spread_as_published() -> None:
    torch.manual_seed(0)
    ours, original = Sam(default_params(), SAM_START_SIZE), published()
    for box, part in (("encoder", "vision_encoder"), ("decoder", "mask_decoder"), ("prompt", "prompt_encoder")):
        theirs, found = spreads(original[box]), spreads(getattr(ours.net, part))
        assert found.keys() == theirs.keys()
        for shape, (deviation, largest) in theirs.items():
            # 300 numbers tell a standard deviation to 5 per cent, and the largest of a uniform draw to 1 per cent.
            assert found[shape][0] == pytest.approx(deviation, rel=0.15), shape
            assert found[shape][1] == pytest.approx(largest, rel=0.1), shape
    basis = ours.net.shared_image_embedding.positional_embedding.detach()  # standard normal
    assert float(basis.std()) == pytest.approx(1.0, abs=0.35)
    assert float(basis.abs().max()) < 5.0  # the start of transformers: 24 times as much


@torch.no_grad()
def test_the_prompted_mask_is_the_first_of_sams_several(sam: Sam):
    image, sets = features(), points()
    theirs = sam.net(
        image_embeddings=image,
        input_points=sets * SIZE - 0.5,
        input_labels=torch.ones(sets.shape[:3], dtype=torch.int64),
        multimask_output=True,
    )
    ours = sam.decode(image, sets, with_segmentation=True)
    torch.testing.assert_close(ours.segmentation_logits, theirs.pred_masks[:, :, 0], atol=1e-5, rtol=0)
    assert torch.equal(ours.mask_logits, sam.decode(image, sets).mask_logits)
    assert sam.decode(image, sets).segmentation_logits is None
    # Pixels of the image are added before the mask is drawn: those of another image's change only its own.
    detail = torch.zeros(2, 3, sam.pixel_channels + 1, 4 * GRID, 4 * GRID)
    assert torch.equal(
        sam.decode(image, sets, with_segmentation=True, detail=detail).segmentation_logits, ours.segmentation_logits
    )
    detail[1] = 1.0
    moved = sam.decode(image, sets, with_segmentation=True, detail=detail).segmentation_logits != ours.segmentation_logits
    assert moved.flatten(1).any(1).tolist() == [False, True]
