"""The layers taken apart; that they give transformers' numbers for both architectures is tested with the language model."""

from unittest.mock import patch

import pytest
import torch
from tiny_readers import PAD, tiny_encoded, tiny_prompts, tiny_reader
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_pipeline.tasks.dialogue.language_model import causal_decoding
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.causal import CausalModel

CAUSAL = ("gpt2", "llama")
REPLIES = torch.randint(2, 12, (3, 4, 9), generator=torch.Generator().manual_seed(0))


def written(language_model: LanguageModel, encoded: Encoded) -> Tensor:
    """Return the states of all steps, [P, G, T, D]."""
    decoding, tokens, states = language_model.begin(encoded, 4), encoded.start[:, None].expand(3, 4), []
    for t in range(REPLIES.shape[2]):
        states.append(decoding.step(tokens))
        tokens = REPLIES[:, :, t]
    return torch.stack(states, dim=2)


@pytest.mark.parametrize("architecture", CAUSAL)
def test_writing_and_scoring_agree_beyond_the_first_room_and_in_bf16(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    with torch.no_grad(), patch.object(causal_decoding, "ROOM", 2):
        encoded = tiny_encoded(language_model)
        found, expected = written(language_model, encoded), language_model.hidden(encoded, REPLIES)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    language_model.float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = tiny_encoded(language_model)
        found, expected = written(language_model, encoded).float(), language_model.hidden(encoded, REPLIES).float()
    # bf16 has 8 bits: two layers of products that add up in another order differ by a few units of 2**-8.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert encoded.cache["values/0"].dtype == torch.bfloat16


@pytest.mark.parametrize("architecture", CAUSAL)
def test_the_longest_prompt_that_leaves_room_for_a_reply_is_read(architecture: str) -> None:
    """Five tokens, of which the last one is the first input of the reply, and 16 positions: 12 tokens are the most."""
    language_model = tiny_reader(architecture)
    encoded = tiny_encoded(language_model)
    language_model.check_room(encoded, 12)
    with pytest.raises(ValueError, match="must have at most 4 tokens, so that a reply of 13 fits into 16 positions, got 5"):
        language_model.check_room(encoded, 13)


def gpt2(**changes: object) -> CausalModel:
    sizes = {"vocab_size": 12, "n_embd": 8, "n_layer": 3, "n_head": 2, "n_positions": 16, "pad_token_id": PAD}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(GPT2Config(**sizes, **off, **changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return CausalModel(model.double().eval())


@pytest.mark.parametrize(
    "changes", [{}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}, {"n_inner": 12}]
)
def test_what_a_configuration_says_of_the_scores_counts(changes: dict) -> None:
    language_model = gpt2(**changes)
    ids, is_token = tiny_prompts(language_model, prompts=1)
    replies = torch.tensor([[[4, 5, 6], [7, 8, 9]]])
    read = torch.cat((ids[0].expand(2, -1), replies[0, :, :-1]), dim=1)
    with torch.no_grad():
        found = language_model.hidden(language_model.encode(ids, is_token), replies)
        expected = language_model.model.base_model(input_ids=read, use_cache=False).last_hidden_state[None, :, -3:]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_of_the_last_layer_a_prompt_needs_keys_and_values_alone() -> None:
    language_model = gpt2()
    blocks = language_model.model.transformer.h
    with patch.object(blocks[1].mlp, "forward", wraps=blocks[1].mlp.forward) as inner:
        with patch.object(blocks[2].mlp, "forward", side_effect=AssertionError("computed for nothing")):
            encoded = language_model.encode(*tiny_prompts(language_model))
        assert inner.call_count == 1
    assert len(encoded.cache) == 2 * 3
