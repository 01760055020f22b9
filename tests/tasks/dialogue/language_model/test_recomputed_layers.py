"""Layers that are computed again in the backward pass: the same gradients of every network, less memory, and really again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from live_bytes import peak_of
from tiny_networks import CAUSAL, CHOICES, ENCODER_DECODERS, tiny_network
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import logprobs_of


def read(path: Path, *, recompute_layers: bool) -> LanguageModel:
    network = {"kind": "folder", "path": str(path), "tokenizer": "bytes", "recompute_layers": recompute_layers}
    return build_language_model(LanguageModelParams.model_validate({"network": network}), seed=0)[0]


def loss_of(language_model: LanguageModel, *, length: int = 5) -> Tensor:
    """Score two replies to each of three prompts of unlike lengths, with the graph of the prompts."""
    generator, is_causal = torch.Generator().manual_seed(3), language_model.kind == "causal"
    ids = torch.randint(2, CHOICES, (3, 1 if is_causal else 2, 6), generator=generator)
    replies = torch.randint(2, CHOICES, (3, 2, length), generator=generator)
    columns, lengths = torch.arange(6), torch.tensor([[6], [3], [2]])
    is_token = (columns >= 6 - lengths if is_causal else columns < lengths)[:, None].expand_as(ids)
    hidden = language_model.hidden(language_model.encode(ids, is_token), replies)
    return logprobs_of(hidden.flatten(0, 2), language_model.head, replies.flatten()).sum() / replies.numel()


@pytest.fixture(autouse=True)
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "size", CHOICES)


@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODER_DECODERS])
def test_gradients_are_the_same_and_layers_compute_again(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    found: list[tuple[Tensor, list[Tensor], int]] = []
    for is_on in (False, True):
        language_model, calls = read(tmp_path, recompute_layers=is_on), []
        for part in language_model.modules():
            if isinstance(part, nn.Linear | Conv1D | nn.LayerNorm):
                part.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        loss, before = loss_of(language_model), len(calls)
        parameters = [p for p in language_model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        found.append((loss, [g for g in gradients if g is not None], len(calls) - before))
        assert not [part for part in language_model.modules() if "forward" in vars(part)]
    (plain, expected, none), (loss, gradients, again) = found
    assert torch.equal(loss, plain)
    assert none == 0 < again
    assert len(gradients) == len(expected)
    torch.testing.assert_close(gradients, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "t5", "bart"])
def test_they_keep_less_for_the_backward_pass(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    peaks = {}
    for is_on in (False, True):
        language_model = read(tmp_path, recompute_layers=is_on)

        def update(language_model: Any = language_model) -> None:
            loss_of(language_model, length=48).backward()

        peaks[is_on] = peak_of(update)
    assert peaks[True] < 0.8 * peaks[False]


def test_a_checkpoint_does_not_ask_whether_layers_compute_again(tmp_path: Path) -> None:
    values = {"kind": "folder", "path": str(tmp_path), "tokenizer": "bytes"}
    plain, on = (LanguageModelParams.model_validate({"network": values | more}) for more in ({}, {"recompute_layers": True}))
    assert decisive(plain.network) == decisive(on.network)
    assert "recompute_layers" not in plain.network.model_dump()
