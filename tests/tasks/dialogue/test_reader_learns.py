"""The parts together: a reader learns a reference by teacher forcing, and what is rewarded from its own replies."""

import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, tiny_encoded, tiny_reader

from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import reference_logprobs, reference_loss
from grpo_pipeline.tasks.dialogue.language_model.tokens import pad_rows

STEPS = 40


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reader_learns_a_reply_to_each_prompt(architecture: str) -> None:
    reader = tiny_reader(architecture)
    reference = pad_rows([[4, 5, 6, 1], [7, 1], [8, 8, 1]], pad_id=0)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.03)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = reference_loss(reference_logprobs(reader, tiny_encoded(reader), reference), reference.is_token, mean="per_token")
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = greedy_replies(reader, tiny_encoded(reader), max_tokens=4, ends=ENDS)
    assert torch.equal(found.actions[:, 0], reference.ids)
