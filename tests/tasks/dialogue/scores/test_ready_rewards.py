"""Rewards that need no code of the user's, each beside a naive count of its own."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import submit_rewards
from grpo_pipeline.tasks.dialogue.scores.exact_match import exact_match
from grpo_pipeline.tasks.dialogue.scores.json_form import json_form
from grpo_pipeline.tasks.dialogue.scores.normalisation import words
from grpo_pipeline.tasks.dialogue.scores.number import last_number, number
from grpo_pipeline.tasks.dialogue.scores.overlong import overlong
from grpo_pipeline.tasks.dialogue.scores.pattern import pattern
from grpo_pipeline.tasks.dialogue.scores.repetition import repetition

TEXTS = st.lists(st.sampled_from(["i", "the", "Cats!", "?", "cats", "12"]), max_size=6).map(" ".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_an_exact_match_has_the_words_of_an_answer(reply: str, answers: list[str]) -> None:
    found = any(words(reply) == words(answer) != [] for answer in answers)
    assert exact_match([reply], [answers]).tolist() == [float(found)]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("She sold 48/2 = <<48/2=24>>24. In all 48+24 = 72\n#### 72", 72),
        ("#### -3", -3),
        ("$1,234.50 in all", Decimal("1234.5")),
        ("the pair (3,4)", 4),
        ("12-7", 7),
        ("12 - 7 = 5.", 5),
        ("x = (1)-2", 2),
        ("it is \u22125", -5),
        ("about .25", Decimal("0.25")),
        ("007", 7),
        ("1,23", 23),
        ("9007199254740993", 9007199254740993),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text_is_read_with_every_digit(text: str, last: Any) -> None:
    assert last_number(text) == last


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20), st.sampled_from(["", "so ", "1 and "]))
@example(9007199254740993, 9007199254740992, "")
def test_whole_numbers_are_equal_or_not(value: int, right: int, before: str) -> None:
    assert number([f"{before}{value}"], [[f"#### {right:,}"]], tolerance=0.0).tolist() == [float(value == right)]


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 300))
def test_numbers_within_the_tolerance_are_equal(value: int, right: int, allowed: int) -> None:
    """In hundredths, so that the sums of the comparison are exact."""
    near = number([f"{value / 100}"], [["none", f"{right / 100}"]], tolerance=allowed / 100)
    assert near.tolist() == [float(abs(value - right) <= allowed)]


@pytest.mark.parametrize(
    ("regex", "part", "expected"),
    [(r"\d+", "full", [1, 0, 1, 0]), (r"\d+", "search", [1, 1, 1, 0]), (r"(?s)a.b", "full", [0, 0, 0, 1])],
)
def test_a_pattern_is_all_of_a_reply_or_a_part_of_it(regex: str, part: Any, expected: list[int]) -> None:
    replies = ["12", "it is 12", " 7 ", "a\nb"]
    assert pattern(replies, [[]] * 4, regex=regex, part=part).tolist() == expected


FORM = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fits", "expected"),
    [({}, [1, 1, 1, 0, 0, 0, 0, 1]), (FORM, [1, 0, 0, 0, 0, 0, 0, 0]), ({"type": "array"}, [0, 0, 1, 0, 0, 0, 0, 0])],
)
def test_a_reply_is_json_of_a_form(fits: dict[str, Any], expected: list[int]) -> None:
    replies = [' {"n": 2}\n', '{"n": 0}', "[1, 2]", "{n: 2}", '{"n": 2} and more', "", "NaN", '"text"']
    assert json_form(replies, [[]] * 8, fits=fits).tolist() == expected


def test_a_form_is_looked_up_nowhere_else() -> None:
    with pytest.raises(Exception, match="http://127.0.0.1:9/form.json"):
        json_form(["{}"], [[]], fits={"$ref": "http://127.0.0.1:9/form.json"})


@given(st.integers(0, 12), st.integers(0, 5), st.integers(1, 6))
def test_long_replies_lose_one_more_with_every_word_until_the_limit(count: int, free: int, more: int) -> None:
    expected = 0.0
    for place in range(1, count + 1):
        expected -= 1 / more if free < place <= free + more else 0.0
    assert overlong(["a " * count], [[]], free=free, limit=free + more)[0] == pytest.approx(expected, abs=1e-12)


@given(TEXTS, st.integers(1, 3))
def test_a_repetition_is_an_n_gram_that_stood_before(reply: str, n: int) -> None:
    text, seen, repeated, grams = words(reply), [], 0, 0
    for start in range(len(text) - n + 1):
        grams += 1
        repeated += text[start : start + n] in seen
        seen.append(text[start : start + n])
    assert repetition([reply], [[]], n=n)[0] == pytest.approx(-repeated / max(grams, 1), abs=1e-12)


def test_a_reply_without_repetition_or_excess_loses_exactly_nothing() -> None:
    for found in (repetition(["a b c"], [[]], n=1), overlong(["b"], [[]], free=3, limit=4)):
        assert not np.signbit(found).any()


@pytest.mark.parametrize(
    ("term", "section", "message"),
    [
        ("pattern", {"regex": "("}, "regex must be a regular expression, got '(' (missing ), unterminated subpattern at"),
        ("pattern", {"regex": "a", "part": "half"}, "Input should be 'full' or 'search'"),
        ("length", {"free": 4, "limit": 4}, "free must be below limit, got 4 and 4"),
        ("json_form", {"fits": {"type": "thing"}}, "fits must be a JSON schema, got 'thing' is not valid"),
        ("number", {"tolerance": -1}, "greater than or equal to 0"),
        ("repetition", {"n": 0}, "greater than or equal to 1"),
        ("exact_match", {"n": 2}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_options_of_a_term_are_refused(term: str, section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        DialogueReward.model_validate({term: {"weight": 1.0, **section}})


def test_several_terms_are_weighed_and_added_up_in_a_process_too() -> None:
    terms = {
        "exact_match": {"weight": 2.0},
        "number": {"weight": 1.0, "tolerance": 0.5},
        "pattern": {"weight": 0.5, "regex": r"\d+"},
        "length": {"weight": 1.0, "free": 1, "limit": 3},
        "repetition": {"weight": 4.0, "n": 1},
    }
    params = DialogueReward.model_validate(terms)
    for workers in (0, 1):
        pool = PoolParams(workers=workers, timeout_seconds=60, chunk_size=8, cache_size=0, failure="stop")
        with RewardPool(pool) as processes:
            found = submit_rewards(params, processes, replies=[["12", "it is 12", "x x"]], answers=[["12"]]).result()
        total = combine_rewards(found.components, found.weights).total
        # 2 + 1 + 0.5; 1 and -1 for two words too many; half a word too many, and half of the words repeated.
        assert total.tolist() == [[3.5, 0.0, -0.5 - 2.0]]


def test_a_regular_expression_that_takes_for_ever_costs_its_reply_alone() -> None:
    terms = {"pattern": {"weight": 1.0, "regex": "(a+)+b"}, "exact_match": {"weight": 1.0}}
    params = DialogueReward.model_validate(terms)
    pool = PoolParams(workers=1, timeout_seconds=1.0, chunk_size=8, cache_size=0, failure="exclude")
    with RewardPool(pool) as processes:
        found = submit_rewards(params, processes, replies=[["aab", "a" * 40]], answers=[["aab"]]).result()
    assert found.components["pattern"][0, 0] == 1
    assert found.is_failed["pattern"].tolist() == [[False, True]]
