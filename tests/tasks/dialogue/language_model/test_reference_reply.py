import pytest
import torch
from tiny_readers import ARCHITECTURES, tiny_encoded, tiny_reader

from grpo_pipeline.tasks.dialogue.language_model.scoring import (
    reference_logprobs,
    reference_loss,
    reference_perplexity,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens, pad_rows

REFERENCE: Tokens = pad_rows([[4, 5, 6, 1], [1], [7, 8, 1]], pad_id=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_is_the_cross_entropy_of_torch_on_the_plain_logits(architecture: str) -> None:
    reader = tiny_reader(architecture)
    encoded = tiny_encoded(reader)
    logprobs = reference_logprobs(reader, encoded, REFERENCE)
    logits = torch.nn.functional.linear(reader.hidden(encoded, REFERENCE.ids[:, None])[:, 0], *reader.head)
    labels = REFERENCE.ids.masked_fill(~REFERENCE.is_token, -100)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    found = reference_loss(logprobs, REFERENCE.is_token, mean="per_token")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    each = [torch.nn.functional.cross_entropy(z, y) for z, y in zip(logits, labels, strict=True)]
    found = reference_loss(logprobs, REFERENCE.is_token, mean="per_sequence")
    torch.testing.assert_close(found, torch.stack(each).mean(), rtol=1e-12, atol=1e-12)
    perplexity = reference_perplexity(reader, encoded, REFERENCE)
    assert perplexity.tokens.tolist() == [4, 1, 3]
    torch.testing.assert_close(perplexity.of_each(), torch.stack(each).exp(), rtol=1e-10, atol=1e-10)
