"""Sampling against enumeration, a naive loop without cache, and transformers' own greedy search."""

from itertools import product
from unittest.mock import patch

import pytest
import torch
from tiny_readers import ARCHITECTURES, ENDS, EOS, PAD, attention, reply_params, tiny_encoded, tiny_prompts, tiny_reader
from torch import Tensor

from grpo_pipeline.core.sampling.truncation import truncated_log_probs
from grpo_pipeline.tasks.dialogue.language_model import sampling as module
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, Reader
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.sampling import ReplyRollouts, greedy_replies, sample_replies, unpack

LIMITS = [{}, {"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 1.4, "top_k": 5, "top_p": 0.9}]


def draw(reader: Reader, encoded: Encoded, params: ReplyParams, *, group_size: int = 6, seed: int = 0) -> ReplyRollouts:
    generator = torch.Generator().manual_seed(seed)
    return sample_replies(reader, encoded, group_size, params=params, ends=ENDS, generator=generator)


def full_log_probs(reader: Reader, encoded: Encoded, actions: Tensor, params: ReplyParams) -> Tensor:
    """Return [P, G, L, V] of the truncated distribution, from one forward without cache."""
    logits = torch.nn.functional.linear(reader.hidden(encoded, actions), *reader.head)
    return truncated_log_probs(logits, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(architecture: str, limits: dict) -> None:
    reader = tiny_reader(architecture)
    encoded, params = tiny_encoded(reader), reply_params(**limits)
    drawn = draw(reader, encoded, params)
    with torch.no_grad():
        log_probs = full_log_probs(reader, encoded, drawn.actions, params)
    expected = log_probs.gather(-1, drawn.actions[..., None])[..., 0]
    torch.testing.assert_close(drawn.logprobs[drawn.is_valid], expected[drawn.is_valid], rtol=1e-10, atol=1e-10)
    if limits.keys() & {"top_k", "top_p"}:
        assert drawn.kept is not None
        assert torch.equal(unpack(drawn.kept, reader.choices)[drawn.is_valid], log_probs.isfinite()[drawn.is_valid])
        assert not drawn.kept[~drawn.is_valid].any()
    else:
        assert drawn.kept is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_end_is_an_action_and_what_follows_is_none(architecture: str) -> None:
    reader = tiny_reader(architecture)
    drawn = draw(reader, tiny_encoded(reader), reply_params(max_tokens=6), group_size=40)
    ended = (drawn.actions == EOS) & drawn.is_valid
    assert ended.any()
    assert not ended.all()
    for actions, is_valid, logprobs in zip(
        *(x.flatten(0, 1) for x in (drawn.actions, drawn.is_valid, drawn.logprobs)), strict=True
    ):
        row = actions.tolist()
        length = row.index(EOS) + 1 if EOS in row else 6
        assert is_valid.tolist() == [t < length for t in range(6)]
        assert row[length:] == [PAD] * (6 - length)
        assert (logprobs[:length] < 0).all()
        assert (logprobs[length:] == 0).all()


def enumerated(reader: Reader, encoded: Encoded, params: ReplyParams) -> dict[tuple[int, ...], float]:
    """Return the probability of every reply of at most three tokens over four choices, from forwards without cache."""
    every = torch.tensor(list(product(range(4), repeat=3)))[None]
    with torch.no_grad():
        chosen = full_log_probs(reader, encoded, every, params).gather(-1, every[..., None])[0, ..., 0]
    found = {}
    for row, logprobs in zip(every[0].tolist(), chosen, strict=True):
        length = row.index(EOS) + 1 if EOS in row else 3
        found[tuple(row[:length])] = float(logprobs[:length].sum().exp())
    return found


@pytest.mark.parametrize("limits", [{}, {"temperature": 0.7, "top_k": 3, "top_p": 0.95}])
@pytest.mark.parametrize("architecture", ["t5", "gpt2"])
def test_every_reply_is_drawn_as_often_as_it_is_likely(architecture: str, limits: dict) -> None:
    reader = tiny_reader(architecture, choices=4, scale=3.0)
    encoded, params = tiny_encoded(reader, prompts=1), reply_params(max_tokens=3, **limits)
    likely = enumerated(reader, encoded, params)
    assert sum(likely.values()) == pytest.approx(1, abs=1e-12)
    count = 4000
    drawn = draw(reader, encoded, params, group_size=count)
    often = dict.fromkeys(likely, 0)
    for actions, is_valid in zip(drawn.actions[0], drawn.is_valid[0], strict=True):
        often[tuple(actions[is_valid].tolist())] += 1
    assert sum(1 for p in likely.values() if p > 0.01) >= 5
    for reply, p in likely.items():
        # 4.5 standard deviations of a binomial, and one draw for the rarest
        assert abs(often[reply] - count * p) <= 4.5 * (count * p * (1 - p)) ** 0.5 + 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_draws_do_not_depend_on_who_has_left(architecture: str) -> None:
    reader = tiny_reader(architecture, choices=5)
    encoded, params = tiny_encoded(reader), reply_params(max_tokens=11, top_p=0.95)
    sizes = []
    step = type(reader.begin(encoded, 1)).step

    def counted(self: object, tokens: Tensor) -> Tensor:
        sizes.append(tokens.numel())
        return step(self, tokens)

    with patch.object(type(reader.begin(encoded, 1)), "step", counted):
        small = draw(reader, encoded, params, seed=2)
    assert sizes[-1] < sizes[0] == 18
    with patch.object(module, "compacted", lambda is_open: None):
        large = draw(reader, encoded, params, seed=2)
    assert torch.equal(small.actions, large.actions)
    assert torch.equal(small.is_valid, large.is_valid)
    assert torch.equal(small.kept, large.kept)
    torch.testing.assert_close(small.logprobs, large.logprobs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_replies_are_those_of_transformers(architecture: str) -> None:
    reader = tiny_reader(architecture)
    for ids, is_token in zip(*tiny_prompts(reader), strict=True):
        # transformers reads one text, without padding: ask both about the first one, alone
        text = ids[0, is_token[0]][None]
        found = greedy_replies(
            reader, reader.encode(text[None], torch.ones_like(text[None], dtype=torch.bool)), max_tokens=6, ends=ENDS
        )
        assert (found.logprobs == 0).all()  # one choice is no choice
        with attention(reader, "eager"):
            out = reader.model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=6, do_sample=False)
        written = out[0, 1 if reader.kind == "seq2seq" else text.shape[1] :]
        assert found.actions[0, 0][found.is_valid[0, 0]].tolist() == written.tolist()


def test_replies_that_do_not_fit_are_refused_before_anything_is_drawn() -> None:
    reader = tiny_reader("gpt2")
    with pytest.raises(ValueError, match=r"so that a reply of 20 fits into 16 positions"):
        draw(reader, tiny_encoded(reader), reply_params(max_tokens=20))
