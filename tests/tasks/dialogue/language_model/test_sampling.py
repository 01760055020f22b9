"""Sampling against enumeration, a naive loop without cache, and transformers' own greedy search."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, EOS, PAD, attention, reply_params, tiny_encoded, tiny_prompts, tiny_reader
from torch import Tensor

from grpo_pipeline.core.sampling.truncation import truncated_log_probs
from grpo_pipeline.tasks.dialogue.language_model import packed_masks, reply_rollouts, sampling, token_draw
from grpo_pipeline.tasks.dialogue.language_model import sampling as module
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams

LIMITS = [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 1.4, "top_k": 5, "top_p": 0.9}]


def draw(
    language_model: LanguageModel, encoded: Encoded, params: ReplyParams, *, group_size: int = 6, seed: int = 0
) -> reply_rollouts.ReplyRollouts:
    generator = torch.Generator().manual_seed(seed)
    return sampling.sample_replies(language_model, encoded, group_size, params=params, ends=ENDS, generator=generator)


def full_log_probs(language_model: LanguageModel, encoded: Encoded, actions: Tensor, params: ReplyParams) -> Tensor:
    """Return [P, G, L, V] of the truncated distribution, from one forward without cache."""
    logits = torch.nn.functional.linear(language_model.hidden(encoded, actions), *language_model.head)
    return truncated_log_probs(logits, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(architecture: str, limits: dict) -> None:
    language_model = tiny_reader(architecture)
    encoded, params = tiny_encoded(language_model), reply_params(**limits)
    drawn = draw(language_model, encoded, params)
    with torch.no_grad():
        log_probs = full_log_probs(language_model, encoded, drawn.actions, params)
    expected = log_probs.gather(-1, drawn.actions[..., None])[..., 0]
    torch.testing.assert_close(drawn.logprobs[drawn.is_valid], expected[drawn.is_valid], rtol=1e-10, atol=1e-10)
    if limits.keys() & {"top_k", "top_p"}:
        assert drawn.kept is not None
        assert torch.equal(
            packed_masks.unpack(drawn.kept, language_model.choices)[drawn.is_valid], log_probs.isfinite()[drawn.is_valid]
        )
        assert not drawn.kept[~drawn.is_valid].any()
    else:
        assert drawn.kept is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_end_is_an_action_and_what_follows_is_none(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    drawn = draw(language_model, tiny_encoded(language_model), reply_params(max_tokens=6), group_size=40)
    ended = (drawn.actions == EOS) & drawn.is_valid
    assert ended.any()
    assert not ended.all()
    for p, g in np.ndindex(*drawn.actions.shape[:2]):
        row, logprobs = drawn.actions[p, g].tolist(), drawn.logprobs[p, g]
        length = row.index(EOS) + 1 if EOS in row else 6
        assert drawn.is_valid[p, g].tolist() == [t < length for t in range(6)]
        assert row[length:] == [PAD] * (6 - length)
        assert ((logprobs < 0) == drawn.is_valid[p, g]).all()
        assert (logprobs[length:] == 0).all()
    if architecture == "gpt2":  # what does not fit is refused before anything is drawn
        with pytest.raises(ValueError, match=r"so that a reply of 20 fits into 16 positions"):
            draw(language_model, tiny_encoded(language_model), reply_params(max_tokens=20))


def enumerated(language_model: LanguageModel, encoded: Encoded, params: ReplyParams) -> dict[tuple[int, ...], float]:
    """Return the probability of every reply of at most three tokens over four choices, from forwards without cache."""
    every = torch.tensor(list(product(range(4), repeat=3)))[None]
    with torch.no_grad():
        chosen = full_log_probs(language_model, encoded, every, params).gather(-1, every[..., None])[0, ..., 0]
    found = {}
    for row, logprobs in zip(every[0].tolist(), chosen, strict=True):
        length = row.index(EOS) + 1 if EOS in row else 3
        found[tuple(row[:length])] = float(logprobs[:length].sum().exp())
    return found


@pytest.mark.parametrize("limits", [{}, {"temperature": 0.7, "top_k": 3, "top_p": 0.95}])
@pytest.mark.parametrize("architecture", ["t5", "gpt2"])
def test_every_reply_is_drawn_as_often_as_it_is_likely(architecture: str, limits: dict) -> None:
    language_model = tiny_reader(architecture, choices=4, scale=3.0)
    encoded, params = tiny_encoded(language_model, prompts=1), reply_params(max_tokens=3, **limits)
    likely = enumerated(language_model, encoded, params)
    assert sum(likely.values()) == pytest.approx(1, abs=1e-12)
    count = 4000
    drawn = draw(language_model, encoded, params, group_size=count)
    often = dict.fromkeys(likely, 0)
    for actions, is_valid in zip(drawn.actions[0], drawn.is_valid[0], strict=True):
        often[tuple(actions[is_valid].tolist())] += 1
    assert sum(1 for p in likely.values() if p > 0.01) >= 5
    for reply, p in likely.items():
        # 4.5 standard deviations of a binomial, and one draw for the rarest
        assert abs(often[reply] - count * p) <= 4.5 * (count * p * (1 - p)) ** 0.5 + 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_draws_do_not_depend_on_who_has_left(architecture: str) -> None:
    language_model = tiny_reader(architecture, choices=5)
    encoded, params = tiny_encoded(language_model), reply_params(max_tokens=11, top_p=0.95)
    decoding = type(language_model.begin(encoded, 1))
    with patch.object(decoding, "step", autospec=True, side_effect=decoding.step) as step:
        small = draw(language_model, encoded, params, seed=2)
    sizes = [call.args[1].numel() for call in step.call_args_list]
    assert sizes[-1] < sizes[0] == 18
    with patch.object(module, "compacted", lambda is_open: None):
        large = draw(language_model, encoded, params, seed=2)
    for name in ("actions", "is_valid", "kept"):
        assert torch.equal(getattr(small, name), getattr(large, name))
    torch.testing.assert_close(small.logprobs, large.logprobs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_replies_are_those_of_transformers(architecture: str) -> None:
    language_model = tiny_reader(architecture)
    for ids, is_token in zip(*tiny_prompts(language_model), strict=True):
        # transformers reads one text, without padding: ask both about the first one, alone
        text = ids[0, is_token[0]][None]
        encoded = language_model.encode(text[None], torch.ones_like(text[None], dtype=torch.bool))
        found = sampling.greedy_replies(language_model, encoded, max_tokens=6, ends=ENDS)
        assert (found.logprobs == 0).all()  # one choice is no choice
        with attention(language_model, "eager"):
            out = language_model.model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=6, do_sample=False)
        written = out[0, 1 if language_model.kind == "seq2seq" else text.shape[1] :]
        assert found.actions[0, 0][found.is_valid[0, 0]].tolist() == written.tolist()


def test_a_token_is_drawn_where_the_mass_exceeds_the_number() -> None:
    """Masses 0.2, 0.5, 0.3 end at 0.2, 0.7, 1; the first and the last token are excluded and never drawn."""
    log_probs = torch.tensor([0.0, 0.2, 0.5, 0.3, 0.0], dtype=torch.float64).log().expand(7, 5)
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 0.99, 1 - 2**-53], dtype=torch.float64)
    assert token_draw.draw_tokens(log_probs, uniform).tolist() == [1, 1, 2, 2, 3, 3, 3]
    # In float32, 1 - 1e-9 is 1, and the last token would have no interval.
    log_probs = torch.tensor([[0.0, -20.7232658]]).log_softmax(dim=-1)  # 1e-9
    uniform = torch.tensor([1 - 2e-9, 1 - 0.5e-9], dtype=torch.float64)
    assert token_draw.draw_tokens(log_probs.expand(2, 2), uniform).tolist() == [0, 1]


@pytest.mark.parametrize("choices", [1, 8, 9, 259])
def test_what_was_packed_bit_by_bit_comes_back(choices: int) -> None:
    is_kept = torch.rand(3, 2, choices, generator=torch.Generator().manual_seed(choices)) < 0.5
    packed = packed_masks.pack(is_kept)
    assert packed.shape == (3, 2, -(-choices // 8))
    assert torch.equal(packed_masks.unpack(packed, choices), is_kept)
    # choices 0, 3 and 7 -> 1 + 8 + 128 = 137; choice 9 -> bit 1 of the next byte = 2
    assert packed_masks.pack(torch.isin(torch.arange(10), torch.tensor([0, 3, 7, 9]))).tolist() == [137, 2]


def test_a_reply_ends_at_any_of_several_ends() -> None:
    language_model = tiny_reader("llama")
    encoded, params = tiny_encoded(language_model), reply_params()
    drawn = {}
    for ends in ((EOS, PAD), (EOS, 7, 9, PAD)):
        generator = torch.Generator().manual_seed(0)
        drawn[ends] = sampling.sample_replies(language_model, encoded, 40, params=params, ends=ends, generator=generator)
    plain, several = drawn.values()
    # The same draws until one of the three is drawn, which is the last token of its reply.
    for one, other, is_valid in zip(
        plain.actions.flatten(0, 1).tolist(), several.actions.flatten(0, 1).tolist(), several.is_valid.flatten(0, 1), strict=True
    ):
        length = next((place + 1 for place, token in enumerate(one) if token in (EOS, 7, 9)), len(one))
        assert other[:length] == one[:length]
        assert is_valid.sum() == length
    ended = (reply_rollouts.is_end(several.actions, (EOS, 7, 9, PAD)) & several.is_valid).any(dim=-1)
    assert ended.float().mean() > (reply_rollouts.is_end(plain.actions, ENDS) & plain.is_valid).any(dim=-1).float().mean()
