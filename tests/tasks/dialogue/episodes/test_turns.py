"""Credit per turn of a conversation: which tokens a turn has, what had been paid before it, and what a step makes of it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny_talk
import torch
from tiny_attention import merge
from tiny_environments import ECHO, Ending

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.training.cost import count_cost
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.environment import Episode
from grpo_pipeline.tasks.dialogue.episodes.turns import paid_before, turns_of

ROW = {"prompt": "?", "answers": ["x"]}
WEIGHT, TURNS = 0.5, 3


def talking_task(**terms: Any) -> Any:
    """Every second token ends a reply, which is paid by its letters."""
    environment = {"weight": WEIGHT, "turns": TURNS, "environment": ECHO, "options": {"pay": 0.25}}
    reward = {"f1": None, "rouge_l": None, "bleu": None, "environment": environment, **terms}
    return replace(tiny_talk.make_task(replies={"max_tokens": 12}, reward=reward), tokenizer=Ending())


def to_go(**changes: Any) -> AlgorithmParams:
    asked = {"advantage": {"credit": "to_go", "method": "mean_only"}}
    return tiny_talk.algorithm_params(**merge(asked, changes))


def test_a_turn_ends_with_its_end_or_where_something_is_told() -> None:
    end, pad = 2, 0
    actions = torch.tensor([[[5, end, 7, 7, 5, end], [end, end, 5, pad, pad, pad], [5, 6, 7, 5, 6, end], [pad] * 6]])
    own = torch.tensor([[[1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 1], [0] * 6]]).bool()
    found = turns_of(actions, own, (end, 3, pad))
    assert found.tolist() == [[[0, 0, -1, -1, 1, 1], [0, 1, 2, -1, -1, -1], [0, 0, -1, 1, 1, 1], [-1] * 6]]


def test_what_was_paid_before_a_turn_is_the_sum_of_what_replies_before_it_got() -> None:
    begin = partial(Episode, ECHO, {"pay": 1.0, "stop": 3}, 9, ROW)
    stage = Stage(begin, str, lambda text: [])
    # A letter pays 1, and so does the answer x.
    found = paid_before([stage, stage], [["ab\nx\ncde", "a"], ["\nab\nabcd\nlate", ""]], 4)
    assert found.tolist() == [[[0, 2, 4, 0], [0] * 4], [[0, 0, 2, 6], [0] * 4]]


def test_a_last_reply_that_would_fail_is_not_played() -> None:
    stage = Stage(partial(Episode, "tiny_environments:Broken", {}, 3, ROW), str, lambda text: [])
    assert not paid_before([stage], [["cut"]], 3).any()


def test_the_credit_of_a_step_is_the_reward_less_what_replies_before_it_got() -> None:
    """By a loop over the tokens of every conversation; a second term of the reward counts for every turn."""
    own = {"distinct": {"function": "tiny_rewards:distinct", "weight": 2.0}}
    task = talking_task(own=own)
    data, algorithm, training = tiny_talk.make_data(task), to_go(), tiny_talk.training_params()
    state, batch = build_state(algorithm, training, 0, task, data), task.make_batch(data, np.arange(4))
    done = StepRunner(task, algorithm, training).run(state, batch)
    rollouts, rewards = done.experience.rollouts, done.experience.rewards
    groups, size, length = rollouts.actions.shape
    credits, turn_of = np.zeros((groups, size, TURNS)), np.full((groups, size, length), -1)
    for p in range(groups):
        for g in range(size):
            ids, is_own = rollouts.actions[p, g].tolist(), rollouts.is_valid[p, g].tolist()
            turn, reply, paid = 0, [], 0.0
            episode = Episode(ECHO, {"pay": 0.25}, TURNS, {"prompt": "", "answers": list(batch.answers[p])})
            for place in (place for place in range(length) if is_own[place]):
                turn_of[p, g, place] = turn
                credits[p, g, turn] = float(rewards.total[p, g]) - WEIGHT * paid
                reply.append(ids[place])
                if ids[place] in task.ends[:-1]:
                    paid += episode.answer(task.tokenizer.decode(reply)).reward
                    turn, reply = turn + 1, []
    np.testing.assert_array_equal(rewards.credits.turns.numpy(), turn_of)
    np.testing.assert_allclose(rewards.credits.values.numpy(), credits, atol=1e-12)
    taught = (credits - credits.mean(1, keepdims=True))[np.arange(groups)[:, None, None], np.arange(size)[:, None], turn_of]
    np.testing.assert_allclose(done.experience.advantages.values.numpy(), np.where(turn_of < 0, 0.0, taught), atol=1e-12)
    assert (np.ptp(turn_of.max(2), axis=1) > 0).any()  # some conversations of a group have fewer turns
    assert (turn_of == TURNS - 1).any()
    assert (np.diff(credits[turn_of.max(2) == TURNS - 1], axis=1) < 0).any()
    places = {f"credit/turn_{turn}" for turn in range(TURNS)}
    assert {name for name in done.metrics if name.startswith("credit/")} == places
    # Nothing but whole samples was measured.
    assert count_cost(algorithm, rollouts, {}) == {"samples": groups * size, "reward_calls": groups * size}


def test_a_single_reply_has_no_turns_to_credit() -> None:
    with pytest.raises(ValueError, match=r"credit must be set without dialogue.reward.environment, got to_go; a single reply"):
        tiny_talk.make_task().check_algorithm(to_go())
    talking_task().check_algorithm(to_go())
