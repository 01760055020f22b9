from pathlib import Path

import pytest
import torch
from tiny_attention import SIZE, model_params, shake
from torch import Tensor, nn
from transformers import SamModel

from grpo_pipeline.tasks.attention.model.encoder_tuning import add_lora, merge_lora
from grpo_pipeline.tasks.attention.model.sam import Sam

TARGETS = [("qkv",), ("qkv", "proj")]


def images() -> Tensor:
    return torch.randn(2, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def make_sam(targets: tuple[str, ...] | None = None, *, rank: int = 3, alpha: float = 6.0) -> Sam:
    """A SAM with moved weights; where targets are given, with low-rank updates that are no longer 0."""
    torch.manual_seed(0)
    sam = Sam(model_params(), SIZE)
    shake(sam)
    if targets is not None:
        add_lora(sam.net.vision_encoder, rank=rank, alpha=alpha, targets=targets)
        shake(Trained(sam.net.vision_encoder), seed=2)
    return sam


class Trained(nn.Module):
    """The trained weights of an encoder alone."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.kept = nn.ParameterList([p for p in encoder.parameters() if p.requires_grad])


@torch.no_grad()
def test_a_layer_is_its_weight_and_the_product_of_two_small_ones():
    layer = make_sam(("qkv",)).net.vision_encoder.layers[1].attn.qkv
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (a.shape, b.shape) == ((3, 16), (48, 3))
    expected = x @ layer.base_layer.weight.T + layer.base_layer.bias + 6.0 / 3 * (x @ a.T @ b.T)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("rank", [1, 4])
def test_the_number_of_trained_weights(rank: int, targets: tuple[str, ...]):
    encoder = make_sam(targets, rank=rank).net.vision_encoder
    # 2 layers of width 16; qkv: r * 16 + 48 * r, proj: r * 16 + 16 * r
    expected = 2 * rank * (4 * 16 + (2 * 16 if "proj" in targets else 0))
    assert sum(p.numel() for p in encoder.parameters() if p.requires_grad) == expected


@torch.no_grad()
@pytest.mark.parametrize("targets", TARGETS)
def test_merged_gives_the_same_as_unmerged_also_from_a_folder(targets: tuple[str, ...], tmp_path: Path):
    sam, plain = make_sam(targets), make_sam()
    tuned = sam.encode(images())
    assert not torch.allclose(tuned, plain.encode(images()), atol=1e-2)
    merge_lora(sam.net.vision_encoder)
    torch.testing.assert_close(sam.encode(images()), tuned, atol=1e-4, rtol=1e-4)
    assert sam.state_dict().keys() == plain.state_dict().keys()
    sam.net.save_pretrained(tmp_path)
    again = Sam(model_params(), SIZE, SamModel.from_pretrained(tmp_path))
    torch.testing.assert_close(again.encode(images()), tuned, atol=1e-4, rtol=1e-4)


def test_nothing_to_merge_is_refused():
    with pytest.raises(ValueError, match="must have low-rank updates to merge, got none; it was not built with encoder: lora"):
        merge_lora(make_sam().net.vision_encoder)


def test_training_mode_changes_no_number():
    sam = make_sam(("qkv",))
    assert torch.equal(sam.train().encode(images()), sam.eval().encode(images()))
