"""Scores of stored replies: what was no decision has no influence."""

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, PAD, reply_params, tiny_encoded, tiny_reader
from transformers.models.t5.modeling_t5 import T5LayerNorm

from grpo_pipeline.core.types import Scores
from grpo_pipeline.tasks.dialogue.language_model import token_scores
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.packed_masks import pack
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts
from grpo_pipeline.tasks.dialogue.language_model.sampling import sample_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import batches_of_prompts, score_decisions, score_replies
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import reference_logprobs, reference_loss, reference_perplexity
from grpo_pipeline.tasks.dialogue.language_model.token_scores import score_tokens
from grpo_pipeline.tasks.dialogue.language_model.tokens import pad_rows


def draw(language_model: LanguageModel, encoded: Encoded, **limits: object) -> ReplyRollouts:
    generator = torch.Generator().manual_seed(0)
    return sample_replies(language_model, encoded, 6, params=reply_params(**limits), ends=ENDS, generator=generator)


def score(
    language_model: LanguageModel, encoded: Encoded, drawn: ReplyRollouts, temperature: float = 1.0, limit: int | None = None
) -> Scores:
    return score_replies(language_model, encoded, drawn, temperature=temperature, tokens_per_batch=limit)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("limits", [{}, {"top_k": 5}])
def test_tokens_after_the_end_have_no_influence(architecture: str, limits: dict) -> None:
    language_model = tiny_reader(architecture, choices=7)
    drawn = draw(language_model, tiny_encoded(language_model), max_tokens=7, **limits)
    assert not drawn.is_valid.all()
    noise = torch.randint(2, language_model.choices, drawn.actions.shape, generator=torch.Generator().manual_seed(5))
    results = []
    for actions in (drawn.actions, torch.where(drawn.is_valid, drawn.actions, noise)):
        scored = score(language_model, tiny_encoded(language_model), replace(drawn, actions=actions))
        gradient = torch.autograd.grad(scored.logprobs.sum() + scored.entropy.sum(), [*language_model.parameters()])
        assert not scored.logprobs[~drawn.is_valid].any()
        results.append((scored.logprobs, scored.entropy, *gradient))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limits", [{}, {"top_k": 4}])
def test_entropy_is_the_mean_over_the_decisions_of_a_prompt(limits: dict) -> None:
    language_model = tiny_reader("gpt2")
    encoded = tiny_encoded(language_model)
    drawn = draw(language_model, encoded, temperature=0.8, **limits)
    with torch.no_grad():
        scored = score(language_model, encoded, drawn, 0.8)
        z = torch.nn.functional.linear(language_model.hidden(encoded, drawn.actions), *language_model.head) / 0.8
    for p in range(3):
        terms = []
        for g, t in drawn.is_valid[p].nonzero().tolist():
            mass = z[p, g, t].exp() if not limits else z[p, g, t].topk(4).values.exp()
            share = mass / mass.sum()
            terms.append(float(-(share * share.log()).sum()))
        assert float(scored.entropy[p]) == pytest.approx(sum(terms) / len(terms), abs=1e-10)


def exact_norm(norm: T5LayerNorm, x: torch.Tensor) -> torch.Tensor:
    """Normalise in float64: transformers does it in float32, whose steps are as large as a small finite difference."""
    return norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)


@pytest.mark.parametrize("architecture", ["t5", "gpt2"])
@pytest.mark.parametrize("limits", [{}, {"top_k": 3}])
def test_the_gradient_is_that_of_finite_differences(architecture: str, limits: dict) -> None:
    language_model = tiny_reader(architecture, choices=5)
    for norm in (module for module in language_model.modules() if isinstance(module, T5LayerNorm)):
        norm.forward = partial(exact_norm, norm)
    drawn = draw(language_model, tiny_encoded(language_model), max_tokens=3, **limits)
    factors = torch.randn(drawn.logprobs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def loss() -> torch.Tensor:
        scored = score_decisions(language_model, tiny_encoded(language_model), drawn, temperature=1.0, tokens_per_batch=12)
        return (factors * (scored.logprobs + 0.3 * scored.entropy)).sum()

    loss().backward()
    for name, parameter in list(language_model.named_parameters())[::4]:
        place = int(parameter.grad.abs().argmax())
        values = []
        for shift in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.view(-1)[place] += shift
                values.append(float(loss()))
                parameter.view(-1)[place] -= shift
        slope = (values[0] - values[1]) / 2e-6
        assert slope == pytest.approx(float(parameter.grad.view(-1)[place]), rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("limits", [{}, {"top_k": 3}])
def test_batches_change_neither_order_nor_numbers(architecture: str, limits: dict) -> None:
    language_model = tiny_reader(architecture)
    encoded = tiny_encoded(language_model)
    drawn = draw(language_model, encoded, **limits)
    cut = drawn.is_valid.clone()
    cut[0, :, 3:] = False
    cut[2, :, 1:] = False
    drawn = replace(drawn, is_valid=cut, actions=drawn.actions.where(cut, PAD))
    # one batch; a prompt in each; prompts 2 and 0, in this order, then 1: 2 prompts * 6 replies * 3 tokens = 36
    whole, *cut_up = (score_decisions(language_model, encoded, drawn, temperature=1.0, tokens_per_batch=n) for n in (None, 1, 36))
    for scores in cut_up:
        torch.testing.assert_close(scores, whole, rtol=1e-10, atol=1e-10)


def test_batches_keep_to_the_limit_and_hold_every_prompt_once() -> None:
    """In order of length: 2, 3, 3 | 7 | 9; 3 prompts * 2 replies * 3 tokens = 18; with the 7: 4 * 2 * 7 = 56."""
    every = [[0, 1, 2, 3, 4]]
    for limit, batches in ((20, [[1, 3, 4], [2], [0]]), (None, every), (90, every), (1, [[1], [3], [4], [2], [0]])):
        assert [batch.tolist() for batch in batches_of_prompts(torch.tensor([9, 2, 7, 3, 3]), 2, limit)] == batches


GENERATOR = torch.Generator().manual_seed(0)
HIDDEN = torch.randn(7, 3, generator=GENERATOR, dtype=torch.float64)
HEAD = (torch.randn(9, 3, generator=GENERATOR, dtype=torch.float64), torch.randn(9, generator=GENERATOR, dtype=torch.float64))
ACTIONS = torch.randint(9, (7,), generator=GENERATOR)
KEPT = (torch.rand(7, 9, generator=GENERATOR) < 0.5).scatter(1, ACTIONS[:, None], True)


def test_each_row_is_scored_over_what_it_kept_and_blocks_change_nothing() -> None:
    for kept in (None, KEPT):
        found = score_tokens(HIDDEN, HEAD, ACTIONS, temperature=0.7, kept=None if kept is None else pack(kept))
        for m in range(7):
            mass = ((HEAD[0] @ HIDDEN[m] + HEAD[1]) / 0.7).exp()
            share = (mass if kept is None else mass * kept[m]) / (mass if kept is None else mass[kept[m]]).sum()
            torch.testing.assert_close(found.logprobs[m], share[ACTIONS[m]].log(), rtol=1e-12, atol=1e-12)
            entropy = -sum(p * p.log() for p in share if p > 0)
            torch.testing.assert_close(found.entropy[m], entropy, rtol=1e-12, atol=1e-12)
    results = []
    for rows in (1, 100):
        leaves = [x.clone().requires_grad_() for x in (HIDDEN, *HEAD)]
        with patch.object(token_scores, "BLOCK_NUMBERS", 9 * rows):
            found = score_tokens(leaves[0], (leaves[1], leaves[2]), ACTIONS, temperature=1.3, kept=pack(KEPT))
            (found.logprobs.sum() - 2 * found.entropy.sum()).backward()
        results.append((*found, *(x.grad for x in leaves)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_is_the_cross_entropy_of_torch_on_the_plain_logits(architecture: str) -> None:
    language_model, reference = tiny_reader(architecture), pad_rows([[4, 5, 6, 1], [1], [7, 8, 1]], pad_id=0)
    encoded = tiny_encoded(language_model)
    logprobs = reference_logprobs(language_model, encoded, reference)
    assert not logprobs[~reference.is_token].any()
    logits = torch.nn.functional.linear(language_model.hidden(encoded, reference.ids[:, None])[:, 0], *language_model.head)
    labels = reference.ids.masked_fill(~reference.is_token, -100)
    each = torch.stack([torch.nn.functional.cross_entropy(z, y) for z, y in zip(logits, labels, strict=True)])
    means = {"per_token": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "per_sequence": each.mean()}
    for mean, expected in means.items():
        found = reference_loss(logprobs.where(reference.is_token, 50.0), reference.is_token, mean=mean)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    perplexity = reference_perplexity(language_model, encoded, reference)
    assert perplexity.tokens.tolist() == [4, 1, 3]
    torch.testing.assert_close((perplexity.nll / perplexity.tokens).exp(), each.exp(), rtol=1e-10, atol=1e-10)
