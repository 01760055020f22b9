import pytest
import torch
from tiny_attention import model_params, shake
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.model.encoder_tuning import Adapted, Adapter, add_adapters
from grpo_pipeline.tasks.attention.model.sam import Sam


def cells() -> Tensor:
    return torch.randn(2, 3, 3, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Returns a pair and takes a keyword, as SAM's attention does."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, str]:
        return 2 * hidden_states, "weights"


def test_an_adapter_starts_as_the_identity():
    torch.manual_seed(0)
    assert torch.equal(Adapter(8, 3)(cells()), cells())


@torch.no_grad()
def test_an_adapter_is_a_bottleneck_beside_its_input():
    torch.manual_seed(0)
    adapter = Adapter(8, 3)
    shake(adapter)
    made = adapter(cells())
    for p, i, j in ((0, 0, 0), (1, 2, 1)):
        x = cells()[p, i, j]
        hidden = F.gelu(adapter.down.weight @ x + adapter.down.bias)
        torch.testing.assert_close(made[p, i, j], x + adapter.up.weight @ hidden + adapter.up.bias, atol=1e-5, rtol=0)


@torch.no_grad()
def test_of_a_pair_the_first_part_is_adapted():
    torch.manual_seed(0)
    layer = Adapted(Attention(), 8, 3)
    shake(layer)
    out, rest = layer(hidden_states=cells())
    torch.testing.assert_close(out, layer.adapter(2 * cells()))
    assert rest == "weights"


@torch.no_grad()
def test_each_block_is_attention_adapter_mlp_adapter():
    """One block of the encoder against the sum written out; window attention, so that padding would show."""
    torch.manual_seed(0)
    encoder = Sam(model_params(encoder_layers=1), 32).net.vision_encoder
    shake(encoder)
    add_adapters(encoder, rank=3)
    shake(encoder, scale=0.1)
    block = encoder.layers[0]
    x = torch.randn(2, 4, 4, 16, generator=torch.Generator().manual_seed(1))
    middle = x + block.attn.adapter(block.attn.base(hidden_states=block.layer_norm1(x))[0])
    expected = middle + block.mlp.adapter(block.mlp.base(block.layer_norm2(middle)))
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rank", [1, 5])
def test_the_number_of_trained_weights(rank: int):
    encoder = Sam(model_params(), 32).net.vision_encoder
    add_adapters(encoder, rank=rank)
    # 2 layers of width 16; two adapters each: down 16 r + r, up 16 r + 16
    assert sum(p.numel() for p in encoder.parameters() if p.requires_grad) == 2 * 2 * (2 * 16 * rank + rank + 16)
