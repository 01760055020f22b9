from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.scores import f1, normalise

TEXTS = st.lists(st.sampled_from(["the", "cat", "Cat!", "dog", "a", "?", "é", "sat"]), max_size=6).map(" ".join)


def squad_f1(prediction, ground_truth):
    """The evaluation script of SQuAD 1.1, line by line."""
    prediction_tokens = normalise(prediction).split()
    ground_truth_tokens = normalise(ground_truth).split()
    common = Counter(prediction_tokens) & Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


@pytest.mark.parametrize(
    ("reply", "answers", "want"),
    [
        ("I like cats", ["i like dogs"], 4 / 6),
        ("I like cats", ["dogs", "I like the cats!"], 1.0),  # the best answer counts, articles and signs do not
        ("cat cat cat", ["cat cat"], 4 / 5),  # repeats count as often as both have them
        ("", ["hello"], 0.0),
        ("hello", [""], 0.0),
        ("", [""], 0.0),  # nothing said earns nothing, whatever the answer
        ("the!", ["a?"], 0.0),
        ("Käse", ["käse"], 1.0),
    ],
)
def test_hand_made_cases(reply, answers, want):
    np.testing.assert_allclose(f1([reply], [answers]), [want], rtol=1e-15)


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), max_size=4))
def test_equals_the_evaluation_script(rows):
    got = f1([reply for reply, _ in rows], [answers for _, answers in rows])
    want = [max(squad_f1(reply, answer) for answer in answers) for reply, answers in rows]
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=0)
    assert got.dtype == np.float64


@pytest.mark.parametrize(
    ("replies", "answers", "message"),
    [
        (["a"], [], "answers must have one row per reply, got 0 for 1 replies"),
        (["a", "b"], [["x"], []], r"the answers of row 1 must be a list of at least one text, got \[\]"),
        (["a"], ["x"], "the answers of row 0 must be a list of at least one text, got 'x'"),
    ],
)
def test_refuses(replies, answers, message):
    with pytest.raises(ValueError, match=message):
        f1(replies, answers)
