"""A SAM with random weights starts as one that segment-anything builds."""

import pytest
import torch
from sam_oracle import import_original
from tiny_attention import model_params
from torch import Tensor, nn

from grpo_pipeline.tasks.attention.model.sam import Sam
from grpo_pipeline.tasks.attention.params import ModelParams

SIZE, PATCH, WIDTH, CHANNELS, LAYERS, HEADS = 128, 8, 48, 32, 2, 4
GRID = SIZE // PATCH


def default_params() -> ModelParams:
    sizes = {"patch_size": PATCH, "encoder_width": WIDTH, "encoder_layers": LAYERS, "encoder_heads": HEADS, "encoder_window": 4}
    return model_params(**sizes, feature_channels=CHANNELS, decoder_layers=LAYERS, decoder_heads=HEADS)


@pytest.fixture(scope="module")
def ours() -> Sam:
    torch.manual_seed(0)
    return Sam(default_params(), SIZE)


def published() -> nn.ModuleDict:
    """Return segment-anything's three boxes at the size of ours."""
    original = import_original()
    torch.manual_seed(1)
    sizes = {"depth": LAYERS, "embedding_dim": CHANNELS, "mlp_dim": 2 * CHANNELS, "num_heads": HEADS}
    encoder = original.ImageEncoderViT(
        img_size=SIZE, patch_size=PATCH, in_chans=1, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, mlp_ratio=2,
        out_chans=CHANNELS, qkv_bias=True, use_rel_pos=True, window_size=4, global_attn_indexes=(LAYERS - 1,),
    )  # fmt: skip
    prompt = original.PromptEncoder(CHANNELS, (GRID, GRID), (SIZE, SIZE), mask_in_chans=4)
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


@pytest.mark.parametrize(
    ("box", "part"), [("encoder", "vision_encoder"), ("decoder", "mask_decoder"), ("prompt", "prompt_encoder")]
)
def test_weights_are_spread_as_published(ours: Sam, box: str, part: str) -> None:
    theirs, found = spreads(published()[box]), spreads(getattr(ours.net, part))
    assert found.keys() == theirs.keys()
    for shape, (deviation, largest) in theirs.items():
        # 300 numbers tell a standard deviation to 5 per cent, and the largest of a uniform draw to 1 per cent.
        assert found[shape][0] == pytest.approx(deviation, rel=0.15), shape
        assert found[shape][1] == pytest.approx(largest, rel=0.1), shape


def test_the_positional_basis_is_standard_normal(ours: Sam) -> None:
    basis = ours.net.shared_image_embedding.positional_embedding
    assert float(basis.detach().std()) == pytest.approx(1.0, abs=0.35)
    assert float(basis.detach().abs().max()) < 5.0  # the start of transformers: 24 times as much
