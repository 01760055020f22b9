"""Readers against the plain forward of transformers: one row per reply, nothing shared, no cache."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from tiny_readers import ARCHITECTURES, attention, tiny_encoded, tiny_prompts, tiny_reader
from torch import Tensor

from grpo_pipeline.core.training.micro_batches import count_prompts, take_prompts
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel, choose_prompts, detached
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import prompt_texts, story_text

REPLIES = torch.randint(2, 12, (3, 4, 6), generator=torch.Generator().manual_seed(2))


def logits(language_model: LanguageModel, hidden: Tensor) -> Tensor:
    weight, bias = language_model.head
    return torch.nn.functional.linear(hidden, weight, bias)


def naive_logits(language_model: LanguageModel, prompt: int, reply: Tensor) -> Tensor:
    """Return logits [T, V] of one reply: padding is taken out, and the model is called as its authors call it."""
    ids, is_token = (x[prompt] for x in tiny_prompts(language_model))
    model = language_model.model
    if language_model.kind == "causal":
        read = torch.cat((ids[is_token], reply))[None]
        return model(input_ids=read, use_cache=False).logits[0][is_token.sum() - 1 : -1]
    shifted = torch.cat((torch.zeros(1, dtype=torch.int64), reply[:-1]))[None]
    with attention(language_model, "eager"):
        texts = [model.encoder(input_ids=i[m][None])[0] for i, m in zip(ids, is_token, strict=True) if m.any()]
        return model(encoder_outputs=(torch.cat(texts, dim=1),), decoder_input_ids=shifted, use_cache=False).logits[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_replies_at_once_and_token_by_token_are_those_of_the_plain_model(architecture: str) -> None:
    """Also after replies have left."""
    language_model = tiny_reader(architecture)
    prompts, places = torch.tensor([0, 2]), torch.tensor([[0, 3], [1, 2]])
    with torch.no_grad():
        encoded = tiny_encoded(language_model)
        expected = language_model.hidden(encoded, REPLIES)
        for p, g in np.ndindex(3, 4):
            plain = naive_logits(language_model, p, REPLIES[p, g])
            torch.testing.assert_close(logits(language_model, expected)[p, g], plain, rtol=1e-10, atol=1e-10)
        decoding, tokens, replies = language_model.begin(encoded, 4), encoded.start[:, None].expand(3, 4), REPLIES
        for t in range(6):
            torch.testing.assert_close(decoding.step(tokens), expected[:, :, t], rtol=1e-10, atol=1e-10)
            tokens = replies[:, :, t]
            if t == 2:
                decoding.keep(prompts, places)
                tokens, replies, expected = (x[prompts[:, None], places] for x in (tokens, replies, expected))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_prompt_is_read_once_for_all_replies_and_gets_their_gradient(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    entry = language_model.model.encoder if language_model.kind == "seq2seq" else language_model.model.get_input_embeddings()
    with patch.object(entry, "forward", wraps=entry.forward) as forward:
        encoded = tiny_encoded(language_model)
        assert forward.call_count == 1
        hidden = language_model.hidden(encoded, REPLIES)
        rows = [len(call.args[0] if call.args else call.kwargs["input_ids"]) for call in forward.call_args_list]
        assert rows == ([6] if language_model.kind == "seq2seq" else [3, 12])  # 3 prompts of 2 texts; 3 prompts, then 12 replies
    learnt = [p for name, p in language_model.named_parameters() if "lm_head" not in name]
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(hidden.square().sum(), learnt))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reading_can_be_cut_chosen_and_detached(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    encoded = tiny_encoded(language_model)
    assert count_prompts(encoded) == 3
    whole = language_model.hidden(encoded, REPLIES)
    torch.testing.assert_close(language_model.hidden(take_prompts(encoded, 1, 3), REPLIES[1:]), whole[1:])
    order = torch.tensor([2, 0])
    torch.testing.assert_close(language_model.hidden(choose_prompts(encoded, order), REPLIES[order]), whole[order])
    assert not any(t.requires_grad for t in (detached(encoded).memory, *detached(encoded).cache.values()) if t is not None)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_that_cannot_be_read_are_refused(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    ids, is_token = tiny_prompts(language_model)
    refused = [(ids[:, 0], is_token[:, 0], r"must have one shape \[P, n, S\], got")]
    none = is_token & torch.tensor([True, True, False])[:, None, None]
    refused.append((ids, none, r"^every prompt must have a token, got none in prompt 2; leave it out"))
    if language_model.kind == "causal":
        refused.append((ids, is_token.flip(-1), r"padded on the left, got 1 texts or padding at the end"))
        refused.append((ids.repeat(1, 2, 1), is_token.repeat(1, 2, 1), r"got 2 texts"))
    for wrong, mask, message in refused:
        with pytest.raises(ValueError, match=message):
            language_model.encode(wrong, mask)
    if architecture == "gpt2":  # 16 positions; prompts of 5 tokens
        language_model.check_room(tiny_encoded(language_model), 12)
        said = r"^a prompt must have at most 4 tokens, so that a reply of 13 fits into 16 positions, got 5"
        with pytest.raises(ValueError, match=said):
            language_model.check_room(tiny_encoded(language_model), 13)


def test_a_prompt_of_one_token_is_its_start_alone() -> None:
    language_model, ids = tiny_reader("gpt2"), torch.full((2, 1, 1), 5)
    with torch.no_grad():
        encoded = language_model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
        found = logits(language_model, language_model.hidden(encoded, REPLIES[:2]))
        expected = language_model.model(input_ids=torch.cat((ids[0, 0], REPLIES[0, 0, :-1]))[None], use_cache=False).logits[0]
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-10, atol=1e-10)


STORIES = [story_text("Rex", "a dog."), story_text("Tom", "a cat.")]


def test_texts_of_a_reader() -> None:
    assert prompt_texts("q", STORIES, kind="seq2seq") == ["title: Rex story: a dog. q", "title: Tom story: a cat. q"]
    assert prompt_texts("q", STORIES, kind="causal") == ["title: Rex story: a dog. title: Tom story: a cat. q reply:"]
    assert [prompt_texts("q", [], kind=kind) for kind in ("seq2seq", "causal")] == [["q"], ["q reply:"]]
