"""Engines beside the project's own scores: ids, log-probabilities, random streams, and answers of a server that are wrong."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_networks import CHOICES, tiny_network
from tiny_readers import reply_params
from tiny_server import TinyServer, complete
from transformers import GenerationConfig

from grpo_pipeline.tasks.dialogue import json_server
from grpo_pipeline.tasks.dialogue.generation.engine import Drawn, Engine, rollouts_of
from grpo_pipeline.tasks.dialogue.generation.library_generate import LibraryEngine
from grpo_pipeline.tasks.dialogue.generation.openai_server import ServerEngine
from grpo_pipeline.tasks.dialogue.generation.params import ServerGeneration
from grpo_pipeline.tasks.dialogue.language_model.build import SHARING
from grpo_pipeline.tasks.dialogue.language_model.library_causal import LibraryCausal
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts
from grpo_pipeline.tasks.dialogue.language_model.scoring import score_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens

ENDS = (1, 3, 5, 7, 9, 11, 0)
LENGTHS = torch.tensor([[8], [3], [1]])


@dataclass(frozen=True)
class Request:
    """Ask an engine for replies."""

    prompts: Tokens
    group_size: int
    params: ReplyParams
    seed: int

    def drawn_by(self, engine: Engine) -> Drawn:
        return engine.draw(self.prompts, self.group_size, params=self.params, ends=ENDS, seed=self.seed)

    def rollouts_of(self, engine: Engine) -> ReplyRollouts:
        return rollouts_of(self.drawn_by(engine), max_tokens=self.params.max_tokens, ends=ENDS)


def request(**changes: Any) -> Request:
    """Ask for replies to prompts of 8, 3 and 1 tokens."""
    is_token = torch.arange(8) >= 8 - LENGTHS  # padding on the left
    ids = torch.randint(2, CHOICES, (3, 8), generator=torch.Generator().manual_seed(3)).masked_fill(~is_token, 0)
    others = {"group_size": 4, "seed": 7}
    own = {name: changes.pop(name, value) for name, value in others.items()}
    params = reply_params(**{"temperature": 0.7, "max_tokens": 6, **changes})
    return Request(prompts=Tokens(ids, is_token), params=params, **own)


def language_model_of(kind: str) -> Any:
    return SHARING.get(kind, LibraryCausal)(tiny_network(kind))


def server_params(base_url: str, **changes: Any) -> ServerGeneration:
    values = {"kind": "openai_server", "base_url": base_url, "model": "tiny", "timeout_s": 20.0}
    return ServerGeneration.model_validate(values | changes)


def check_scores(kind: str, asked: Request, drawn: ReplyRollouts) -> None:
    """Compare the engine's log-probabilities with those that an update would compute."""
    language_model = language_model_of(kind)
    encoded = language_model.encode(asked.prompts.ids[:, None], asked.prompts.is_token[:, None])
    with torch.no_grad():
        scored = score_replies(
            language_model, encoded, drawn, temperature=asked.params.temperature, tokens_per_batch=None
        ).logprobs
    assert drawn.actions.shape == (3, 4, asked.params.max_tokens)
    torch.testing.assert_close(drawn.logprobs, scored, atol=2e-5, rtol=0)
    for row, own in zip(drawn.actions.flatten(0, 1), drawn.is_valid.flatten(0, 1), strict=True):
        length = int(own.sum())
        ended = [place for place, token in enumerate(row.tolist()) if token in ENDS[:-1]]
        assert own.tolist() == [place < length for place in range(asked.params.max_tokens)]
        assert length == (min(ended) + 1 if ended else asked.params.max_tokens)
        assert set(row[length:].tolist()) <= {ENDS[-1]}
    assert 0 < float(drawn.is_valid.double().mean()) < 1


@pytest.mark.parametrize("limits", [{}, {"top_p": 0.8}, {"top_k": 6}, {"top_k": 9, "top_p": 0.7}], ids=str)
@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2", "gemma2"])
def test_the_library_draws_what_an_update_scores(kind: str, limits: dict[str, Any]) -> None:
    asked, before = request(**limits), torch.get_rng_state()
    engine = LibraryEngine(language_model_of(kind))
    drawn, again = (asked.rollouts_of(engine) for _ in range(2))
    check_scores(kind, asked, drawn)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn.actions, again.actions)
    assert torch.equal(drawn.logprobs, again.logprobs)
    assert (drawn.kept is None) == (not limits)
    other = replace(asked, seed=8).rollouts_of(engine)
    assert not torch.equal(drawn.actions, other.actions)


def test_a_folders_own_configuration_decides_nothing() -> None:
    asked, language_model = request(), language_model_of("qwen2")
    expected = asked.drawn_by(LibraryEngine(language_model))
    own = GenerationConfig(repetition_penalty=9.0, top_k=1, suppress_tokens=[2, 4], bad_words_ids=[[6]], min_new_tokens=5)
    language_model.model.generation_config = own
    found = asked.drawn_by(LibraryEngine(language_model))
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.logprobs, expected.logprobs)
    assert language_model.model.generation_config is own


def frequencies(engine: Engine, asked: Request) -> torch.Tensor:
    """Return how often each token is the first one of a reply, [P, V]."""
    first = asked.drawn_by(engine).tokens[..., 0]
    return torch.nn.functional.one_hot(first, CHOICES).double().mean(1)


def test_the_library_draws_as_often_as_it_says() -> None:
    """Of 4000 draws a frequency is within 5 standard errors of its probability."""
    asked, language_model = request(max_tokens=1, group_size=4000), language_model_of("qwen2")
    encoded = language_model.encode(asked.prompts.ids[:, None], asked.prompts.is_token[:, None])
    every = torch.arange(CHOICES).expand(3, CHOICES)[..., None]
    all_tokens = ReplyRollouts(every, torch.zeros(every.shape), torch.ones(every.shape, dtype=torch.bool))
    with torch.no_grad():
        p = score_replies(language_model, encoded, all_tokens, temperature=0.7, tokens_per_batch=None).logprobs[..., 0].double()
    found, p = frequencies(LibraryEngine(language_model), asked), p.exp()
    assert bool(((found - p).abs() <= 5 * (p * (1 - p) / 4000).sqrt() + 1e-3).all())


def test_a_server_gets_ids_and_gives_ids_with_its_log_probabilities() -> None:
    asked = request()
    with TinyServer(tiny_network("qwen2")) as server:
        engine = ServerEngine(server_params(server.base_url, at_once=2), choices=CHOICES)
        drawn, again = (asked.rollouts_of(engine) for _ in range(2))
    check_scores("qwen2", asked, drawn)
    assert torch.equal(drawn.actions, again.actions)
    assert torch.equal(drawn.logprobs, again.logprobs)
    assert set(server.paths) == {"/v1/completions"}
    bodies = {len(body["prompt"]): body for body in server.asked}
    for row, length in enumerate(LENGTHS[:, 0].tolist()):
        body = bodies[length]
        assert body["prompt"] == asked.prompts.ids[row, 8 - length :].tolist()
        assert (body["n"], body["temperature"], body["max_tokens"]) == (4, 0.7, 6)
        assert (body["top_p"], body["top_k"], body["stop_token_ids"]) == (1.0, -1, [*ENDS[:-1]])
    assert len({body["seed"] for body in server.asked}) == 3
    assert len(server.asked) == 6


def test_replies_stand_by_their_numbers_whatever_the_order_of_the_answer() -> None:
    model = tiny_network("qwen2")
    with TinyServer(model) as server:  # which answers the last one first
        drawn = request().drawn_by(ServerEngine(server_params(server.base_url), choices=CHOICES))
    [body] = [body for body in server.asked if len(body["prompt"]) == 8]
    for choice in complete(model, body)["choices"]:
        ids = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
        assert drawn.tokens[0, choice["index"], : len(ids)].tolist() == ids


def first(answer: Any, **changes: Any) -> Any:
    """Change the log-probabilities of the first choice of an answer."""
    choice = answer["choices"][0]
    return answer | {"choices": [choice | {"logprobs": choice["logprobs"] | changes}, *answer["choices"][1:]]}


WRONG: dict[str, tuple[Any, str]] = {
    "texts": (lambda answer, _: first(answer, tokens=["a"]), "tokens as token_id:<id>, .* got 'a'"),
    "an id that the network has not": (
        lambda answer, _: first(answer, tokens=["token_id:40"]),
        "ids below 40, got 'token_id:40'",
    ),
    "no end": (lambda answer, _: first(answer, tokens=["token_id:2"]), "end with an id of"),
    "nothing": (lambda answer, _: first(answer, tokens=[]), "end with an id of"),
    "a log-probability missing": (
        lambda answer, _: first(answer, tokens=["token_id:1"], token_logprobs=[None]),
        "a log-probability of each token, got 0 of 1",
    ),
    "no log-probabilities": (
        lambda answer, _: answer | {"choices": [c | {"logprobs": None} for c in answer["choices"]]},
        "hold choices with logprobs",
    ),
    "too few replies": (lambda answer, _: answer | {"choices": answer["choices"][1:]}, "n = 4 choices, got 3"),
}


@pytest.mark.parametrize(("change", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_an_answer_that_is_wrong_is_refused(change: Any, sentence: str) -> None:
    with TinyServer(tiny_network("qwen2"), change) as server, pytest.raises(ValueError, match=sentence):
        request().drawn_by(ServerEngine(server_params(server.base_url), choices=CHOICES))


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_server, "PAUSE_S", 0.01)


# What a server does with a request, the tries that it gets, and what the sentence says.
FAILED: dict[str, tuple[Any, int, str]] = {
    "an error of its own": (lambda answer, _: 500, 3, "status 500"),
    "too busy": (lambda answer, _: 429, 3, "status 429"),
    "a refusal": (lambda answer, _: 400, 1, "status 400"),
    "no JSON": (lambda answer, _: b"<html>", 3, "JSONDecodeError"),
    "too slow": (lambda answer, _: 1.0, 3, "(timed out|TimeoutError)"),
}


@pytest.mark.usefixtures("_no_pause")
@pytest.mark.parametrize(("change", "tries", "sentence"), FAILED.values(), ids=FAILED.keys())
def test_a_server_that_fails_is_asked_again_and_then_named(change: Any, tries: int, sentence: str) -> None:
    asked = request()
    one = replace(asked, prompts=Tokens(asked.prompts.ids[:1], asked.prompts.is_token[:1]))
    with TinyServer(tiny_network("qwen2"), change) as server, pytest.raises(ConnectionError, match=sentence) as refused:
        one.drawn_by(ServerEngine(server_params(server.base_url, timeout_s=0.3), choices=CHOICES))
    assert len(server.asked) == tries
    assert f"{server.base_url}/completions must answer within 0.3 s" in str(refused.value)


@pytest.mark.usefixtures("_no_pause")
def test_a_server_that_recovers_is_believed_and_a_dead_one_is_named() -> None:
    asked = request()
    with TinyServer(tiny_network("qwen2"), lambda answer, number: 503 if number < 2 else answer) as server:
        engine = ServerEngine(server_params(server.base_url, at_once=1), choices=CHOICES)
        check_scores("qwen2", asked, asked.rollouts_of(engine))
    assert len(server.asked) == 5
    with pytest.raises(ConnectionError, match=r"must answer within 20 s, got .*refused.*; start the server"):
        asked.drawn_by(engine)


def test_a_server_that_fails_for_one_prompt_ends_the_draw() -> None:
    with TinyServer(tiny_network("qwen2"), lambda answer, number: 400 if number == 1 else answer) as server:
        engine = ServerEngine(server_params(server.base_url, at_once=1), choices=CHOICES)
        with pytest.raises(ConnectionError, match="status 400"):
            request().drawn_by(engine)
