import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tiny_readers import ARCHITECTURES, tiny_encoded, tiny_reader

from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.lora import add_lora
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, LoraTuning

T5 = {"kind": "t5", "width": 8, "layers": 1, "heads": 2}


def new(architecture: str, **changes: object) -> LanguageModelParams:
    positions = {} if architecture == "t5" else {"max_positions": 32}
    return LanguageModelParams.model_validate({"network": T5 | positions | {"kind": architecture}, **changes})


def folder(path: Path, tokenizer: str = "bytes") -> LanguageModelParams:
    return LanguageModelParams.model_validate({"network": {"kind": "folder", "path": str(path), "tokenizer": tokenizer}})


@pytest.mark.parametrize("lora", [None, {"kind": "lora", "rank": 2, "alpha": 4}])
@pytest.mark.parametrize("architecture", ["t5", "gpt2", "llama"])
def test_the_seed_makes_the_weights_and_a_folder_brings_them_back(architecture: str, lora: Any, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    language_model, tokenizer = build_language_model(new(architecture, tuning=lora), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert language_model.choices == tokenizer.size == 259
    assert language_model.kind == ("seq2seq" if architecture == "t5" else "causal")
    weights = language_model.state_dict()
    again, other = (build_language_model(new(architecture, tuning=lora), seed=seed)[0].state_dict() for seed in (3, 4))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    drawn = [name for name in weights if "lora_A" in name] or ["model." + n for n, _ in language_model.model.named_parameters()]
    assert not (any if lora else all)(torch.equal(weights[name], other[name]) for name in drawn)
    if lora is None:
        language_model.model.save_pretrained(tmp_path)
        read = build_language_model(folder(tmp_path), seed=9)[0].state_dict()
        assert all(torch.equal(weights[name], read[name]) for name in weights)


@pytest.mark.parametrize(
    ("architecture", "name"), [("t5", "dropout_rate"), ("gpt2", "resid_pdrop"), ("llama", "attention_dropout")]
)
def test_dropout_of_a_folder_is_switched_off(architecture: str, name: str, tmp_path: Path) -> None:
    language_model, _ = build_language_model(new(architecture), seed=0)
    language_model.model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: 0.5}))
    language_model = build_language_model(folder(tmp_path), seed=0)[0].train()
    texts = torch.full((1, 1, 4), 9)
    replies = torch.full((1, 2, 3), 7)
    encoded = language_model.encode(texts, torch.ones_like(texts, dtype=torch.bool))
    assert torch.equal(language_model.hidden(encoded, replies), language_model.hidden(encoded, replies))


def test_what_a_folder_lacks_or_holds_instead_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(error: type[Exception], message: str, path: Path = tmp_path, tokenizer: str = "bytes") -> None:
        with pytest.raises(error, match=message):
            build_language_model(folder(path, tokenizer), seed=0)

    missing = r"must hold config.json and model.safetensors .*, got no folder; write it"
    refuses(FileNotFoundError, missing, tmp_path / "nowhere")
    build_language_model(new("gpt2"), seed=0)[0].model.save_pretrained(tmp_path)
    refuses(FileNotFoundError, r"must hold one of tokenizer.json", tokenizer="folder")
    monkeypatch.setattr(ByteTokenizer, "size", 260)
    refuses(ValueError, r"^the tokenizer must have at most 259 ids, .*, got 260; give the tokenizer")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    refuses(ValueError, r"must hold a causal language model or an encoder-decoder")
    (tmp_path / "config.json").write_text("{")
    refuses(ValueError, r"config.json must be a JSON file, got .*; copy it again")
    (tmp_path / "model.safetensors").unlink()
    refuses(FileNotFoundError, r"got \['config.json', 'generation_config.json'\]")


def test_a_new_t5_gives_the_logits_of_transformers() -> None:
    # Its embeddings are tied, so that the decoder's output is scaled before the head.
    language_model, _ = build_language_model(new("t5"), seed=0)
    ids, reply = torch.tensor([[[70, 71, 1]]]), torch.tensor([[[90, 91, 1]]])
    hidden = language_model.hidden(language_model.encode(ids, torch.ones_like(ids, dtype=torch.bool)), reply)
    language_model.model.set_attn_implementation("eager")
    expected = language_model.model(input_ids=ids[0], decoder_input_ids=torch.tensor([[0, 90, 91]])).logits
    torch.testing.assert_close(torch.nn.functional.linear(hidden[0], *language_model.head), expected, rtol=1e-5, atol=1e-6)


def test_a_wrong_section_is_refused() -> None:
    for change, sentence in (
        ({"network": {"kind": "folder"}}, r"network.folder.path\n.*Field required"),
        ({"network": {"kind": "folder", "path": "x", "tokenizer": "bytes", "tokeniser": "bytes"}}, "network.folder.tokeniser"),
        ({"network": {"kind": "folder", "path": "x", "tokenizer": "bytes", "width": 8}}, "network.folder.width"),
        ({"network": T5 | {"width": 9}}, "width must be a multiple of heads, got 9 and 2"),
        ({"network": T5 | {"kind": "llama", "width": 6, "max_positions": 8}}, "an even multiple of heads for llama, got 6 and 2"),
        ({"network": T5 | {"max_positions": 8}}, "network.t5.max_positions"),
        ({"network": T5 | {"kind": "gpt2"}}, r"network.gpt2.max_positions\n.*Field required"),
        ({"network": T5 | {"kind": "new"}}, "expected tags: 't5', 'gpt2', 'llama', 'folder'"),
        ({"tuning": {"rank": 2, "alpha": 4.0}}, r"tuning.kind\n.*Field required"),
        ({"lora": {"rank": 2, "alpha": 4.0}}, "lora"),
    ):
        with pytest.raises(ValidationError, match=sentence):
            LanguageModelParams.model_validate({"network": T5, **change})


REPLIES = torch.randint(2, 12, (3, 2, 4), generator=torch.Generator().manual_seed(2))
# A [r, in] and B [out, r] per layer, r = 3, width 8, feed-forward 16; t5 has 6 attentions and 4 feed-forwards in its two stacks
ATTENTION = {"t5": 6 * 2 * 3 * (8 + 8), "gpt2": 2 * 3 * (8 + 24), "llama": 2 * 3 * ((8 + 8) + (8 + 4))}
ALL = {
    "t5": 6 * 4 * 3 * (8 + 8) + 4 * 2 * 3 * (8 + 16),
    "gpt2": 2 * 3 * ((8 + 24) + (8 + 8) + 2 * (8 + 32)),
    "llama": 2 * 3 * (2 * (8 + 8) + 2 * (8 + 4) + 3 * (8 + 16)),
}
TARGETS = {"t5": ("q", "v"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}


@pytest.mark.parametrize("targets", ["attention", "all"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_updates_begin_at_nothing_and_are_all_that_learns(architecture: str, targets: str) -> None:
    language_model = tiny_reader(architecture)
    with torch.no_grad():
        plain = language_model.hidden(tiny_encoded(language_model), REPLIES)
    chosen = TARGETS[architecture] if targets == "attention" else None
    add_lora(language_model, LoraTuning(kind="lora", rank=3, alpha=6.0, targets=chosen))
    hidden = language_model.double().hidden(tiny_encoded(language_model), REPLIES)
    assert torch.equal(hidden, plain)
    trained = {name: p for name, p in language_model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == (ATTENTION if chosen else ALL)[architecture]
    gradients = torch.autograd.grad(hidden.square().sum(), [*trained.values()])
    # A gets no gradient while B is 0
    assert all(bool(g.any()) == ("lora_B" in name) for name, g in zip(trained, gradients, strict=True))


def test_alpha_over_rank_scales_the_update() -> None:
    language_model = tiny_reader("llama")
    layer = language_model.model.base_model.layers[0].self_attn
    weight, x = layer.q_proj.weight.detach().clone(), torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8)
    add_lora(language_model, LoraTuning(kind="lora", rank=2, alpha=5.0))
    language_model.double()
    a, b = layer.q_proj.lora_A["default"].weight, torch.nn.init.eye_(layer.q_proj.lora_B["default"].weight)
    torch.testing.assert_close(layer.q_proj(x), x @ (weight + 2.5 * b @ a).T, rtol=1e-12, atol=1e-12)


def test_targets_that_are_no_layers_are_named_with_those_that_there_are() -> None:
    tuning = LoraTuning(kind="lora", rank=2, alpha=5.0, targets=("q_proj", "query"))
    with pytest.raises(ValueError, match=r"targets must name linear layers of a llama, down_proj, .*, got query; correct them"):
        add_lora(tiny_reader("llama"), tuning)
