from unittest.mock import patch

import pytest
import torch
from tiny_readers import tiny_encoded, tiny_reader
from torch import Tensor

from grpo_pipeline.tasks.dialogue.language_model import causal
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, Reader

CAUSAL = ("gpt2", "llama")
REPLIES = torch.randint(2, 12, (3, 4, 9), generator=torch.Generator().manual_seed(0))


def written(reader: Reader, encoded: Encoded) -> Tensor:
    """Return the states of all steps, [P, G, T, D]."""
    decoding, tokens, states = reader.begin(encoded, 4), encoded.start[:, None].expand(3, 4), []
    for t in range(REPLIES.shape[2]):
        states.append(decoding.step(tokens))
        tokens = REPLIES[:, :, t]
    return torch.stack(states, dim=2)


@pytest.mark.parametrize("architecture", CAUSAL)
def test_replies_may_be_longer_than_the_first_room(architecture: str) -> None:
    reader = tiny_reader(architecture)
    with torch.no_grad(), patch.object(causal, "ROOM", 2):
        encoded = tiny_encoded(reader)
        torch.testing.assert_close(written(reader, encoded), reader.hidden(encoded, REPLIES), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("architecture", CAUSAL)
def test_nothing_of_a_prompt_is_copied_while_replies_are_written(architecture: str) -> None:
    reader = tiny_reader(architecture)
    with torch.no_grad():
        encoded = tiny_encoded(reader)
        decoding = reader.begin(encoded, 4)
        held = [part.data_ptr() for prompt in decoding._held for part in (prompt.keys, prompt.values)]
        for t in range(5):
            decoding.step(REPLIES[:, :, t])
    assert [part.data_ptr() for prompt in decoding._held for part in (prompt.keys, prompt.values)] == held
    assert all(len(prompt.keys) == 3 for prompt in decoding._held)  # prompts, not replies
    assert {own.shape[1:5] for own in decoding._own} == {(3, decoding._held[0].keys.shape[1], 4, causal.ROOM)}


@pytest.mark.parametrize("architecture", CAUSAL)
def test_writing_and_scoring_agree_in_bf16(architecture: str) -> None:
    reader = tiny_reader(architecture).float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = tiny_encoded(reader)
        found, expected = written(reader, encoded).float(), reader.hidden(encoded, REPLIES).float()
    # bf16 has 8 bits: two layers of products that add up in another order differ by a few units of 2**-8.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert encoded.cache["values/0"].dtype == torch.bfloat16
