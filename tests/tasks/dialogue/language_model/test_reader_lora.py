import pytest
import torch
from tiny_readers import ARCHITECTURES, tiny_encoded, tiny_reader

from grpo_pipeline.tasks.dialogue.language_model.build import add_lora, build_reader
from grpo_pipeline.tasks.dialogue.language_model.params import LoraParams, NewReaderParams

REPLIES = torch.randint(2, 12, (3, 2, 4), generator=torch.Generator().manual_seed(2))
# A [r, in] and B [out, r] per layer, r = 3, width 8: t5 has q and v [8, 8] in 2 self- and 2 x 2 decoder attentions of 2 layers
NUMBERS = {"t5": 6 * 2 * 3 * (8 + 8), "gpt2": 2 * 3 * (8 + 24), "llama": 2 * 3 * ((8 + 8) + (8 + 4))}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_updates_begin_at_nothing_and_are_all_that_learns(architecture: str) -> None:
    reader = tiny_reader(architecture)
    with torch.no_grad():
        plain = reader.hidden(tiny_encoded(reader), REPLIES)
    add_lora(reader, LoraParams(rank=3, alpha=6.0))
    reader.double()
    hidden = reader.hidden(tiny_encoded(reader), REPLIES)
    assert torch.equal(hidden, plain)
    trained = {name: p for name, p in reader.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == NUMBERS[architecture]
    hidden.square().sum().backward()
    # A gets no gradient while B is 0
    assert all(bool(p.grad.any()) == ("lora_B" in name) for name, p in trained.items())


def test_alpha_over_rank_scales_the_update() -> None:
    reader = tiny_reader("llama")
    layer = reader.model.base_model.layers[0].self_attn
    weight = layer.q_proj.weight.detach().clone()
    add_lora(reader, LoraParams(rank=2, alpha=5.0))
    reader.double()
    a, b = layer.q_proj.lora_A["default"].weight, layer.q_proj.lora_B["default"].weight
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(b, generator=generator)
    x = torch.randn(4, 8, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(layer.q_proj(x), x @ (weight + 2.5 * b @ a).T, rtol=1e-12, atol=1e-12)


def test_the_seed_makes_the_updates_too() -> None:
    sizes = {"source": "new", "architecture": "t5", "width": 8, "layers": 1, "heads": 2, "max_positions": None}
    params = NewReaderParams.model_validate({**sizes, "lora": {"rank": 2, "alpha": 4}})
    before = torch.get_rng_state()
    one, two, other = (build_reader(params, seed=seed)[0].state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    names = [name for name in one if "lora_A" in name]
    assert names
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in names)
