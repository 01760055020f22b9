"""Conversations with an environment: what is drawn, read, scored, paid and imitated."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_talk
import torch
from pydantic import ValidationError
from tiny_environments import ECHO, Ending
from tiny_readers import ARCHITECTURES, EOS, PAD, reply_params, tiny_encoded, tiny_reader

from grpo_pipeline.core.sampling.truncation import truncated_log_probs
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.dialogue.build import tokenise
from grpo_pipeline.tasks.dialogue.data.guess_number import write_games
from grpo_pipeline.tasks.dialogue.data.params import GuessSource
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage, replies_of, shown
from grpo_pipeline.tasks.dialogue.episodes.demonstrations import demonstration
from grpo_pipeline.tasks.dialogue.episodes.environment import Episode, play
from grpo_pipeline.tasks.dialogue.episodes.episode_reward import episode_reward
from grpo_pipeline.tasks.dialogue.episodes.params import EnvironmentReward
from grpo_pipeline.tasks.dialogue.language_model import compaction, packed_masks
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts, has_ended, lengths_of
from grpo_pipeline.tasks.dialogue.language_model.sampling import sample_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import score_decisions

LETTERS = "..23456789ab"  # of the 12 ids of a tiny reader; its end and its padding are none
ROW = {"prompt": "?", "answers": ["x"]}
ENDS = (*range(1, 8), PAD)  # many: a random model seldom draws one of them
GAME = "grpo_pipeline.tasks.dialogue.episodes.guess_number:GuessNumber"


def letters(ids: Any) -> str:
    return "".join(LETTERS[i] for i in ids if i > 1)


def stage(turns: int = 3, **options: Any) -> Stage:
    return Stage(partial(Episode, ECHO, options, turns, ROW), letters, lambda text: [LETTERS.index(c) for c in text])


def converse(
    model: LanguageModel, encoded: Encoded, params: ReplyParams, *, group: int = 8, seed: int = 0, turns: int = 3
) -> ReplyRollouts:
    stages = PerPrompt([stage(turns) for _ in encoded.start])
    generator = torch.Generator().manual_seed(seed)
    return sample_replies(model, replace(encoded, stages=stages), group, params=params, ends=ENDS, generator=generator)


def expected_conversation(actions: list[int], turns: int, length: int) -> tuple[list[bool], bool]:
    """Read a conversation from its left to its right: which tokens were drawn, and whether it is over before its L tokens."""
    own: list[bool] = []
    episode = stage(turns).begin()
    while len(own) < length:
        first = len(own)
        while len(own) < length and (not own[first:] or actions[len(own) - 1] not in ENDS[:-1]):
            own.append(True)
        if actions[len(own) - 1] not in ENDS[:-1]:
            return own, False
        text = episode.answer(letters(actions[first : len(own) - 1])).text
        if text is None or len(own) + len(text) >= length:
            return own, True
        told = [LETTERS.index(c) for c in text]
        assert actions[len(own) : len(own) + len(told)] == told
        own += [False] * len(told)
    return own, False


@pytest.mark.parametrize("limits", [{}, {"top_k": 5, "top_p": 0.9, "temperature": 1.3}], ids=["all", "truncated"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_told_follows_each_end_and_is_no_decision(architecture: str, limits: dict[str, Any]) -> None:
    model = tiny_reader(architecture)
    encoded, params = tiny_encoded(model), reply_params(max_tokens=11, **limits)
    drawn = converse(model, encoded, params)
    own = drawn.is_valid
    told = 0
    for p in range(own.shape[0]):
        for g in range(own.shape[1]):
            ids = drawn.actions[p, g].tolist()
            expected, is_over = expected_conversation(ids, 3, 11)
            assert own[p, g].tolist() == expected + [False] * (11 - len(expected))
            assert ids[len(expected) :] == [PAD] * (11 - len(expected))
            assert bool(has_ended(drawn, ENDS)[p, g]) == is_over
            assert int(lengths_of(own)[p, g]) == len(expected)
            told += expected.count(False)
    assert told > 20
    assert not drawn.logprobs[~own].any()
    # The distribution that each own token was drawn from, by one forward pass over the whole conversation.
    with torch.no_grad():
        logits = torch.nn.functional.linear(model.hidden(encoded, drawn.actions), *model.head)
    log_probs = truncated_log_probs(logits, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    by_hand = log_probs.gather(-1, drawn.actions[..., None])[..., 0]
    torch.testing.assert_close(drawn.logprobs[own], by_hand[own], rtol=1e-10, atol=1e-10)
    if drawn.kept is not None:
        assert torch.equal(packed_masks.unpack(drawn.kept, model.choices)[own], log_probs.isfinite()[own])
        assert not drawn.kept[~own].any()
    scored = score_decisions(model, encoded, drawn, temperature=params.temperature, tokens_per_batch=60)
    torch.testing.assert_close(scored.logprobs.detach(), drawn.logprobs, rtol=1e-10, atol=1e-10)


def test_conversations_that_leave_the_batch_change_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_reader("gpt2")
    encoded, params = tiny_encoded(model), reply_params(max_tokens=9, top_k=6)
    with_leaving = converse(model, encoded, params, turns=2)
    monkeypatch.setattr(compaction, "WORTH", -1.0)  # nothing leaves
    alone = converse(model, encoded, params, turns=2)
    for name in ("actions", "is_valid", "kept"):
        assert torch.equal(getattr(with_leaving, name), getattr(alone, name))
    torch.testing.assert_close(with_leaving.logprobs, alone.logprobs, rtol=1e-12, atol=1e-12)


def talking_task(*, length: int = 12, **environment: Any) -> Any:
    task = tiny_talk.make_task(
        replies={"max_tokens": length},
        reward={"f1": None, "rouge_l": None, "bleu": None, "environment": {"weight": 1.0, "turns": 3, **environment}},
    )
    return replace(task, tokenizer=Ending())


def test_a_conversation_is_paid_what_its_steps_paid_while_it_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    task = talking_task(environment=ECHO, options={"pay": 0.25})
    data = tiny_talk.make_data(task)
    batch, policy = task.make_batch(data, np.arange(4)), task.build_policy(0)
    paid: dict[int, list[float]] = {}
    answer = Episode.answer

    def listening(episode: Episode, reply: str) -> Any:
        step = answer(episode, reply)
        paid.setdefault(id(episode), []).append(step.reward)
        return step

    context = task.encode(policy, batch)
    monkeypatch.setattr(Episode, "answer", listening)
    kept: list[Episode] = []
    begin = Episode.__init__
    monkeypatch.setattr(Episode, "__init__", lambda self, *args, **given: (kept.append(self), begin(self, *args, **given))[1])
    rollouts = task.sample(policy, context, 6, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
    live = torch.tensor([sum(paid.get(id(episode), [])) for episode in kept[:24]], dtype=torch.float64).view(4, 6)
    outcomes = task.decode(policy, context, rollouts, batch)
    parts, weights = task.reward(batch, rollouts, outcomes)
    assert weights == {"environment": 1.0}
    ended = has_ended(rollouts, task.ends)
    assert float(ended.double().mean()) > 0.3
    torch.testing.assert_close(parts["environment"][ended], live[ended], rtol=0, atol=1e-12)
    lines = [text.count("\n") + 1 for replies in outcomes.replies for text in replies]
    assert max(lines) == 3


def test_a_reward_plays_the_lines_of_a_reply_again_with_its_row() -> None:
    columns = {"number": [5, 5, 3, 5]}
    found = episode_reward(
        ["4\n6\n5", "9\n5\n1", "what\n3", "1\n2\n3"],
        [[]] * 4,
        prompts=["1-8?"] * 4,
        columns=columns,
        environment=GAME,
        turns=3,
        options={},
    )
    assert found.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert episode_reward(["4\n5"], [[]], prompts=["?"], columns={"number": [5]}, environment=GAME, turns=1, options={}) == [0.0]


def test_the_game_says_more_and_less_and_stops_when_the_number_is_found() -> None:
    steps = play(Episode(GAME, {}, 9, {"number": 5}), ["3", "x y", "٧", "7", "5", "4"])
    assert [step.text for step in steps] == ["more", "number", "less", "less", None]
    assert [step.reward for step in steps] == [0.0, 0.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"must begin with a row .* KeyError: 'number' for the prompt '1-8\?'; correct it"):
        Episode(GAME, {}, 9, {"prompt": "1-8?"})


def test_demonstrations_are_replies_to_what_the_environment_says() -> None:
    tokenizer = ByteTokenizer()
    spoken = Stage(partial(Episode, GAME, {}, 3, {"number": 5}), tokenizer.decode, lambda t: tokenizer.encode(f"<{t}>"))
    ids, is_own = demonstration(tokenizer.encode("7"), "7\n2\n9", spoken, tokenizer)
    expected = [*tokenizer.encode("7"), EOS, *tokenizer.encode("<less>"), *tokenizer.encode("2"), EOS]
    expected += [*tokenizer.encode("<more>"), *tokenizer.encode("9"), EOS]
    assert ids == expected
    assert is_own == [True] * 2 + [False] * 6 + [True] * 2 + [False] * 6 + [True] * 2
    assert replies_of(ids, is_own, tokenizer) == "7\n2\n9"
    assert shown(ids + [PAD] * 3, is_own + [False] * 3, tokenizer) == "7 [<less>] 2 [<more>] 9"
    assert [replies_of(*nothing, tokenizer) for nothing in (([], []), ([PAD], [False]), ([EOS], [True]))] == ["", "", ""]
    found, flags = demonstration(tokenizer.encode("5"), "5\n2", spoken, tokenizer)
    assert (found, flags) == ([*tokenizer.encode("5"), EOS], [True, True])


def test_the_supervised_loss_reads_what_is_told_and_learns_the_replies_alone() -> None:
    task = replace(talking_task(environment=ECHO, length=20), tokenizer=ByteTokenizer())
    examples = tiny_talk.make_examples()
    table = examples.table.assign(answers=[["a\nb c", "d"] if i % 2 else ["e\nf\ng"] for i in range(len(examples.table))])
    data, _ = tokenise(task, replace(examples, table=table))
    batch = task.make_batch(data, np.asarray([0, 1]))
    policy = task.build_policy(0)
    loss = task.supervised_loss(policy, task.encode(policy, batch), batch, None)
    assert batch.reference is not None
    own = [[bool(v) for v in row] for row in batch.reference.is_token.tolist()]
    assert [sum(row) for row in own] == [6, 6]  # "e", "f" and "g", "a" and "b c", each with its end
    hidden = policy.hidden(task.encode(policy, batch), batch.reference.ids[:, None])[:, 0]
    log_probs = torch.nn.functional.linear(hidden, *policy.head).log_softmax(-1)
    each = log_probs.gather(-1, batch.reference.ids[..., None])[..., 0]
    torch.testing.assert_close(loss, -each[batch.reference.is_token].mean())
    assert int(task.supervised_counts(batch)) == 12


def test_games_are_split_by_their_range_and_the_number_lies_in_it() -> None:
    source = GuessSource(kind="guess_number", seed=3, games=200, span=8, ranges=30, turns=3)
    rows = write_games(source)
    assert write_games(source) == rows
    for row in rows:
        low = int(row["range"])
        assert row["prompt"] == f"{low}-{low + 7}?"
        guesses = [int(guess) for guess in str(row["answers"]).split("\n")]
        assert len(set(guesses)) == 3
        assert all(low <= value < low + 8 for value in [*guesses, row["number"]])
    numbers = [row["number"] - int(row["range"]) for row in rows]
    assert sorted(set(numbers)) == list(range(8))
    assert len({row["range"] for row in rows}) == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": "nowhere:Game"}, r"environment must name an importable class, .*'nowhere:Game': ModuleNotFoundError"),
        ({"environment": "grpo_pipeline.tasks.dialogue.episodes.environment:play"}, "must have a method reset, got none"),
        ({"turns": 0}, "greater than or equal to 1"),
        ({"options": {"pay": float("nan")}}, "options of the environment 'tiny_environments:Echo' must be JSON"),
        ({"pay": 1}, "Extra inputs"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_when_the_parameters_are_read(change: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EnvironmentReward.model_validate({"weight": 1.0, "environment": ECHO, "turns": 2, **change})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Broken",
            r"step of the environment 'tiny_environments:Broken' must return \(text, reward, done\).*'a b'",
        ),
        ("Mute", "text must be a str, got NoneType"),
        ("Unready", "must begin with a row of the data, got KeyError: '\\?' for the prompt"),
    ],
)
def test_the_sentence_of_a_broken_environment_names_it_and_the_reply(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Episode(f"tiny_environments:{name}", {}, 2, ROW).answer("a\n b")


def test_the_file_of_the_environment_is_part_of_what_a_checkpoint_agrees_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = Path(__file__).parents[3].joinpath("support/tiny_environments.py").read_text()
    digests = []
    for place, text in enumerate((code, code.replace("% 2", "% 3"))):
        (tmp_path / f"games_{place}.py").write_text(text)
        task = talking_task(environment=f"games_{place}:Echo")
        digests.append(task.fingerprint(tiny_talk.make_data(task))["environment"])
    assert digests[0] != digests[1]
    assert "environment" not in tiny_talk.make_task().fingerprint(tiny_talk.make_data())
