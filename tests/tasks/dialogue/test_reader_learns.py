"""The parts together: a reader learns a reference by teacher forcing, and what is rewarded from its own replies."""

import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, reply_params, tiny_encoded, tiny_prompts, tiny_reader

from grpo_pipeline.core.training.micro_batches import take_prompts
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies, sample_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import reference_logprobs, reference_loss, score_replies
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


@pytest.mark.parametrize("limits", [{}, {"temperature": 1.2, "top_k": 6, "top_p": 0.95}])
def test_a_reader_learns_what_is_rewarded(limits: dict) -> None:
    reader, params = tiny_reader("t5"), reply_params(max_tokens=4, **limits)
    optimizer, generator = torch.optim.Adam(reader.parameters(), lr=0.03), torch.Generator().manual_seed(0)
    means = []
    for _ in range(STEPS):
        encoded = tiny_encoded(reader)
        drawn = sample_replies(reader, encoded, 16, params=params, ends=ENDS, generator=generator)
        reward = (drawn.actions == 7).double().mean(dim=-1)  # the share of one token
        means.append(float(reward.mean()))
        advantage = reward - reward.mean(dim=1, keepdim=True)
        logprobs = score_replies(reader, encoded, drawn, temperature=params.temperature, tokens_per_batch=60).logprobs
        optimizer.zero_grad()
        (-(advantage[..., None] * logprobs).sum() / drawn.is_valid.sum()).backward()
        optimizer.step()
    assert means[-1] > 0.9
    assert means[0] < 0.5


def test_micro_batches_of_prompts_give_the_scores_of_the_whole() -> None:
    reader = tiny_reader("t5")
    encoded = reader.encode(*tiny_prompts(reader))
    generator = torch.Generator().manual_seed(0)
    drawn = sample_replies(reader, encoded, 4, params=reply_params(top_k=5), ends=ENDS, generator=generator)
    whole = score_replies(reader, encoded, drawn, temperature=1.0, tokens_per_batch=None)
    for p in range(3):
        own = score_replies(
            reader, *(take_prompts(x, p, p + 1) for x in (encoded, drawn)), temperature=1.0, tokens_per_batch=None
        )
        torch.testing.assert_close(own.logprobs, whole.logprobs[p : p + 1], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(own.entropy, whole.entropy[p : p + 1], rtol=1e-10, atol=1e-10)
