"""Environments answer in the processes of the pool: as in this one, side by side, and no longer than its limit."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_talk
import torch
from tiny_environments import ECHO, Ending

from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.episodes import other_process
from grpo_pipeline.tasks.dialogue.episodes.conversations import Conversations
from grpo_pipeline.tasks.dialogue.episodes.environment import play
from grpo_pipeline.tasks.dialogue.episodes.stages import episodes_of, stages_of

ROW = {"prompt": "?", "answers": ["x"]}
WAYWARD = "tiny_environments:Wayward"
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(tiny_talk.pool_params(workers=2, timeout_seconds=LIMIT_S)) as made:
        yield made


@pytest.fixture(scope="module")
def here() -> RewardPool:
    return RewardPool(tiny_talk.pool_params(workers=0))


def talking_task(pool: RewardPool, environment: str = ECHO, **options: Any) -> Any:
    told = {"weight": 1.0, "turns": 3, "environment": environment, "options": options}
    reward = {"f1": None, "rouge_l": None, "bleu": None, "environment": told}
    task = tiny_talk.make_task(replies={"max_tokens": 12}, reward=reward)
    return replace(task, tokenizer=Ending(), pool=pool)


def draw(task: Any, data: Any) -> Any:
    policy, batch = task.build_policy(0), task.make_batch(data, np.arange(4))
    generator = torch.Generator().manual_seed(0)
    context = task.encode(policy, batch)
    return task.sample(policy, context, 6, temperature=1.0, proposal="policy", generator=generator)


def test_conversations_are_the_same_in_other_processes(pool: RewardPool, here: RewardPool) -> None:
    data = tiny_talk.make_data()
    there, alone = (draw(talking_task(one, pay=0.25), data) for one in (pool, here))
    for name in ("actions", "is_valid", "logprobs"):
        assert torch.equal(getattr(there, name), getattr(alone, name))
    assert int((~there.is_valid).sum()) > 20


def test_conversations_are_answered_side_by_side(pool: RewardPool, tmp_path: Path) -> None:
    environment = talking_task(pool, "tiny_environments:Meeting", folder=str(tmp_path)).rewards.environment
    rows = {"questions": ["?"] * 4, "answers": [[]] * 4, "cells": ["{}"] * 4}
    stages = stages_of(environment, Ending(), tiny_talk.make_task().prompt, **rows, pool=pool)
    talks = Conversations(stages, 1, 9, torch.device("cpu"))
    assert talks.hear([0, 1, 2, 3], torch.full((4, 2), 4), 1) == [True] * 4
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize(
    ("how", "got"),
    [
        ("hang", rf"TimeoutError: no answer within {LIMIT_S:g} s \(reward_pool"),
        ("search for ever", rf"TimeoutError: no answer within {LIMIT_S:g} s \(reward_pool"),
        ("die", "RuntimeError: its process ended with exit status 3"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_what_goes_astray_ends_with_the_class_the_reply_and_the_prompt(pool: RewardPool, how: str, got: str) -> None:
    episode = episodes_of(WAYWARD, {"how": how}, 3, pool=pool)(ROW)
    begun = time.monotonic()
    message = (
        rf"step of the environment '{WAYWARD}' must return \(text, reward, done\), got {got}.* for the reply 'a b' to the prompt"
    )
    with pytest.raises(ValueError, match=message):
        episode.answer("a\nb")
    assert time.monotonic() - begun < LIMIT_S + 5.0
    for _ in range(2):  # others go on, in both processes
        assert play(episodes_of(ECHO, {}, 3, pool=pool)(ROW), ["a"])[0].text == "b"


@pytest.mark.parametrize("name", ["Broken", "Mute", "Unready"])
def test_an_environment_that_raises_says_the_same_in_both_places(pool: RewardPool, here: RewardPool, name: str) -> None:
    said = []
    for one in (pool, here):
        with pytest.raises(ValueError, match=f"'tiny_environments:{name}' must") as raised:
            episodes_of(f"tiny_environments:{name}", {}, 2, pool=one)(ROW).answer("a b")
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_what_a_process_has_forgotten_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_process, "MOST_KEPT", 1)
    monkeypatch.setattr(other_process, "_KEPT", other_process.OrderedDict())
    given = (ECHO, {"pay": 0.25}, ROW)
    said = []
    for heard in ([], ["a"], ["a", "bc"], ["a", "bc", "x"]):
        said.append(other_process.answer(1, *given, heard))
        other_process.answer(2, *given, [])  # takes its place
    assert said == [None, ("b", 0.25, False), ("aa", 0.5, False), ("bbb", 1.25, False)]
    assert len(other_process._KEPT) == 1


@pytest.mark.parametrize("places", ["here", "there"])
def test_an_answer_that_is_too_long_ends_the_conversation(pool: RewardPool, here: RewardPool, places: str) -> None:
    drawn = draw(talking_task(pool if places == "there" else here, WAYWARD, how="say much"), tiny_talk.make_data())
    first_end = (drawn.actions[..., None] == torch.tensor(Ending.end_ids)).any(-1).long().argmax(-1)
    ended = drawn.is_valid.sum(-1) < 12
    assert bool(ended.any())
    assert torch.equal(drawn.is_valid.sum(-1)[ended], first_end[ended] + 1)  # a single reply


@pytest.mark.parametrize("how", ["say what comes to mind", "pay what comes to mind"])
def test_an_environment_of_chance_is_refused_while_it_is_drawn(here: RewardPool, how: str) -> None:
    with pytest.raises(ValueError, match="must answer the same replies to the same row alike, got '.*' and a reward of .*, then"):
        draw(talking_task(here, WAYWARD, how=how), tiny_talk.make_data())
