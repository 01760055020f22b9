from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from grpo_pipeline.tasks.dialogue.scores import rouge, rouge_l

WORDS = st.lists(st.sampled_from(["cat", "dog", "sat", "mat", "on"]), min_size=1, max_size=7)


def longest_common(x, y):
    """Common subsequence by recursion on the first words."""

    @cache
    def best(i, j):
        if i == len(x) or j == len(y):
            return 0
        return best(i + 1, j + 1) + 1 if x[i] == y[j] else max(best(i + 1, j), best(i, j + 1))

    return best(0, 0)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_rouge_l_equals_a_recursion(reply, answers):
    want = max(2 * longest_common(tuple(reply), tuple(answer)) / (len(reply) + len(answer)) for answer in answers)
    got = rouge_l([" ".join(reply)], [[" ".join(answer) for answer in answers]])
    np.testing.assert_allclose(got, [want], rtol=1e-14)


@given(WORDS, WORDS)
def test_equals_the_package_where_its_own_words_are_ours(reply, answer):
    own = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(" ".join(answer), " ".join(reply))
    got = rouge([" ".join(reply)], [[" ".join(answer)]])
    assert [got[name][0] for name in ("rouge_1", "rouge_2", "rouge_l")] == [score.fmeasure for score in own.values()]


def test_words_are_the_normalised_ones():
    # The package alone would find no letter in Käse's umlaut and in Japanese, and count "the".
    assert rouge_l(["the Käse"], [["KÄSE!"]]) == [1.0]
    assert rouge_l(["日本"], [["日本"]]) == [1.0]


@pytest.mark.parametrize(("reply", "answer"), [("", "hello"), ("hello", ""), ("", ""), ("the?!", "an ...")])
def test_texts_without_words_score_nothing(reply, answer):
    assert {name: score.tolist() for name, score in rouge([reply], [[answer]]).items()} == {
        "rouge_1": [0.0],
        "rouge_2": [0.0],
        "rouge_l": [0.0],
    }


def test_refuses_another_kind():
    with pytest.raises(ValueError, match=r"must be among \['rouge_1', 'rouge_2', 'rouge_l'\], got \['rouge_9'\]"):
        rouge(["a"], [["b"]], names=("rouge_9",))
