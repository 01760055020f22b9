"""The layers taken apart; that they give transformers' numbers for both architectures is tested with the reader."""

from unittest.mock import patch

import pytest
import torch
from tiny_readers import PAD, tiny_prompts
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_pipeline.tasks.dialogue.language_model.causal import CausalReader

SIZES = {"vocab_size": 12, "n_embd": 8, "n_layer": 3, "n_head": 2, "n_positions": 16, "pad_token_id": PAD}
OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2(**changes: object) -> CausalReader:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**SIZES, **OFF, **changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return CausalReader(model.double().eval())


@pytest.mark.parametrize(
    "changes", [{}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}, {"n_inner": 12}]
)
def test_what_a_configuration_says_of_the_scores_counts(changes: dict) -> None:
    reader = gpt2(**changes)
    ids, is_token = tiny_prompts(reader, prompts=1)
    replies = torch.tensor([[[4, 5, 6], [7, 8, 9]]])
    with torch.no_grad():
        found = reader.hidden(reader.encode(ids, is_token), replies)
        for g in range(2):
            read = torch.cat((ids[0, 0], replies[0, g, :-1]))[None]
            expected = reader.model.base_model(input_ids=read, use_cache=False).last_hidden_state[0, -3:]
            torch.testing.assert_close(found[0, g], expected, rtol=1e-10, atol=1e-10)


def test_of_the_last_layer_a_prompt_needs_keys_and_values_alone() -> None:
    reader = gpt2()
    blocks = reader.model.transformer.h
    with patch.object(blocks[1].mlp, "forward", wraps=blocks[1].mlp.forward) as inner:
        with patch.object(blocks[2].mlp, "forward", side_effect=AssertionError("computed for nothing")):
            encoded = reader.encode(*tiny_prompts(reader))
        assert inner.call_count == 1
    assert len(encoded.cache) == 2 * 3
