"""The parts together: a language model learns a reference by teacher forcing, and what is rewarded from its own replies."""

import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, tiny_encoded, tiny_reader

from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import reference_logprobs, reference_loss
from grpo_pipeline.tasks.dialogue.language_model.tokens import pad_rows

STEPS = 40


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reader_learns_a_reply_to_each_prompt(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    reference = pad_rows([[4, 5, 6, 1], [7, 1], [8, 8, 1]], pad_id=0)
    optimizer = torch.optim.Adam(language_model.parameters(), lr=0.03)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = reference_loss(
            reference_logprobs(language_model, tiny_encoded(language_model), reference), reference.is_token, mean="per_token"
        )
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = greedy_replies(language_model, tiny_encoded(language_model), max_tokens=4, ends=ENDS)
    assert torch.equal(found.actions[:, 0], reference.ids)
