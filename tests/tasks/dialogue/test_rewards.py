import pytest
import torch
from pydantic import ValidationError

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.measure_check import check_measure
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.shares import RewardShare
from grpo_pipeline.tasks.dialogue.batch import Outcomes
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import gather_rewards, submit_rewards
from grpo_pipeline.tasks.dialogue.scores.bleu import bleu
from grpo_pipeline.tasks.dialogue.scores.score_table import score_replies

REPLIES = [["I like the cats!", "dogs", "raise me"], ["", "good morning", "good Morning!"]]
ANSWERS = [["i like cats", "i like dogs"], ["good evening"]]
FLAT = [reply for group in REPLIES for reply in group]
REPEATED = [ANSWERS[0]] * 3 + [ANSWERS[1]] * 3
F64 = torch.float64


def make(*, own=None):
    section = {"f1": {"weight": 1.0}, "rouge_l": {"weight": 0.5}, "bleu": {"weight": 0.125}}
    own = {"scripted": {"function": "tiny_rewards:scripted", "weight": 0.25}} if own is None else own
    return DialogueReward.model_validate(section | {"own": own})


def processes(failure="exclude"):
    return RewardPool(PoolParams(workers=0, timeout_seconds=30, chunk_size=2, cache_size=100, failure=failure))


def measure(params, replies=REPLIES, answers=ANSWERS, **failure):
    with processes(**failure) as pool:
        return submit_rewards(params, pool, replies=replies, answers=answers).result()


def test_parts_are_the_metrics_of_each_reply():
    rewards = measure(make(own={}))
    columns = score_replies(FLAT, REPEATED) | {"bleu": bleu(FLAT, REPEATED)}
    for name in ("f1", "rouge_l", "bleu"):
        assert torch.equal(rewards.components[name], torch.tensor(columns[name], dtype=F64).reshape(2, 3))
    assert dict(rewards.weights) == {"f1": 1.0, "rouge_l": 0.5, "bleu": 0.125}
    assert rewards.failures == {"f1": 0, "rouge_l": 0, "bleu": 0}
    assert not any(part.requires_grad for part in rewards.components.values())


def test_a_failed_reply_is_counted_and_leaves_its_group_or_pays_a_penalty():
    rewards = measure(make())
    assert rewards.components["scripted"].isnan().tolist() == [[False, False, True], [False, False, False]]
    assert rewards.failures == {"f1": 0, "rouge_l": 0, "bleu": 0, "scripted": 1}
    assert rewards.causes == {"scripted": "tiny_rewards:scripted on the reply 'raise me': it raised KeyError: 'raise me'"}
    # The two others of the group are compared with each other alone.
    total, expected = combine_rewards(rewards.components, rewards.weights).total, [0.5**0.5, -(0.5**0.5), 0.0]
    assert compute_advantages(total, method="group").values[0].tolist() == pytest.approx(expected, abs=1e-4)
    rewards = measure(make(), failure=-2.0)
    assert rewards.components["scripted"][0].tolist() == [16 + 2 / 7, 4 + 2 / 7, -2.0]
    assert combine_rewards(rewards.components, rewards.weights).total[0, 2].item() == pytest.approx(-2.0 * 0.25, abs=1e-15)


def test_a_reward_that_asks_for_the_prompt_gets_that_of_its_own_reply():
    params = make(own={"asks": {"function": "tiny_rewards:lengths_of_both", "weight": 1.0}})
    with processes() as pool:
        found = submit_rewards(params, pool, replies=REPLIES, answers=ANSWERS, questions=["four", "seven!!"]).result()
    assert found.components["asks"].tolist() == [
        [len(r) + 100 * n for r in group] for group, n in zip(REPLIES, (4, 7), strict=True)
    ]


def test_a_reward_gets_the_columns_of_the_row_of_its_own_reply():
    params = make(own={"levels": {"function": "tiny_rewards:levels", "weight": 1.0}})
    beside = {"questions": ["four", "seven!!"], "cells": ['{"level": 3}', '{"level": 5}']}
    with processes() as pool:
        found = submit_rewards(params, pool, replies=REPLIES, answers=ANSWERS, **beside).result()
    rows = zip(REPLIES, (4, 7), (2, 1), (3, 5), strict=True)
    assert found.components["levels"].tolist() == [[len(r) + 10 * p + 100 * a + 1000 * n for r in g] for g, p, a, n in rows]


def test_a_reward_that_fails_for_one_micro_batch_alone_does_not_stop_the_run():
    params, parts = make(), [[["raise a", "raise b"]], [["one", "raise c"]]]
    with processes() as pool:
        pending = [submit_rewards(params, pool, replies=part, answers=[["x"]]) for part in parts]
        shares = tuple(RewardShare(one, 0) for one in pending)
        found = gather_rewards(params, Outcomes((), shares), shape=(2, 2))
        assert found["scripted"].isnan().tolist() == [[True, True], [False, True]]
        with pytest.raises(RewardFailedError, match="reward 'scripted' must score at least one reply of a batch"):
            gather_rewards(params, Outcomes((), shares[:1]), shape=(1, 2))


LONG = {"function": "tiny_rewards:slow", "weight": 0.25, "options": {"seconds": 0.0}}
SECTION = {"f1": {"weight": 1.0}, "bleu": {"weight": 0.5}, "own": {"long": LONG}}


def test_parts_are_built_in_and_own_and_one_that_is_taken_away_is_not_even_imported():
    params = DialogueReward.model_validate(SECTION | {"rouge_l": None, "own": SECTION["own"] | {"off": None}})
    assert params.weights == {"f1": 1.0, "bleu": 0.5, "long": 0.25}
    options = {name: dict(measure.options) for name, measure in params.measures.items()}
    assert options == {"f1": {}, "bleu": {}, "long": {"seconds": 0.0}}
    for measure in params.measures.values():
        check_measure(measure)


def test_reward_params_refuses():
    for changes, message in (
        ({"f1": {"weight": -1.0}}, r"f1.weight"),
        ({"f1": None, "bleu": None, "own": None}, r"a reward must have a term, got none"),
        ({"rouge_1": {"weight": 1.0}}, "rouge_1"),
        ({"weights": {"f1": 1.0}}, "weights"),
        ({"own": {"f1": LONG}}, "the name of an own reward must be a new word, got 'f1'"),
        ({"own": {"long": LONG | {"options": {}}}}, "missing a required argument: 'seconds'"),
        ({"own": {"long": LONG | {"weight": -0.5}}}, "own.long.weight"),
        ({"failure": "exclude"}, "failure"),
        ({"temperature": 1}, "temperature"),
    ):
        with pytest.raises(ValidationError, match=message):
            DialogueReward.model_validate(SECTION | changes)
