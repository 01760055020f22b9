"""Right answers that a term of the reward does not pay are named before anything is trained."""

import logging
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.right_answers import check_right_answers


@pytest.fixture
def pool() -> Iterator[RewardPool]:
    with RewardPool(PoolParams(workers=0, timeout_seconds=30, chunk_size=4, cache_size=100)) as pool:
        yield pool


def table_of(*answers: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"example_id": [f"e{place}" for place in range(len(answers))], "answers": answers})


def reward(**terms: Any) -> DialogueReward:
    return DialogueReward.model_validate({name: {"weight": 0.5, **more} for name, more in terms.items()})


ALL = {"f1": {}, "exact_match": {}, "number": {}, "rouge_l": {}, "bleu": {}}


def test_right_answers_that_earn_everything_are_not_mentioned(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    terms = ALL | {"pattern": {"regex": r".*\d"}, "length": {"free": 3, "limit": 4}, "repetition": {"n": 1}}
    check_right_answers(reward(**terms), pool, table_of(["it is 4", "four"], ["#### 5"]))
    assert caplog.records == []


def test_some_answers_without_the_best_value_are_named(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    """Of seven the first five, once for each term."""
    with caplog.at_level(logging.WARNING):
        check_right_answers(reward(**ALL), pool, table_of(["1"], *[["none"]] * 7))
        check_right_answers(reward(**ALL), pool, table_of(["1"], *[["none"]] * 7))  # for the next arm
    [record] = caplog.records
    assert record.getMessage().startswith(
        "reward 'number' pays less than 1, its best value, for the right answers of 7 of 8 examples: "
        "'e1' ('none'), 'e2', 'e3', 'e4', 'e5'; "
    )


@pytest.mark.parametrize("term", ["number", "exact_match", "f1"])
def test_a_term_that_pays_no_right_answer_is_refused(pool: RewardPool, term: str) -> None:
    with pytest.raises(
        RewardFailedError, match=rf"reward '{term}' must pay 1 .* got less for all 2, .* dialogue.reward.{term}: null"
    ):
        check_right_answers(reward(**{term: {}}), pool, table_of(["!"], ["?"]))


def test_a_form_may_differ_from_that_of_all_answers(pool: RewardPool, caplog: pytest.LogCaptureFixture) -> None:
    """A model may be asked for a form that the answers of the data do not have."""
    check_right_answers(reward(pattern={"regex": "<b>.*</b>"}), pool, table_of(["1"], ["2"]))
    assert "for the right answers of 2 of 2 examples: 'e0' ('1'), 'e1'" in caplog.text
