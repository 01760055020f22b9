import math

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.scores import BLEU_COLUMNS, bleu, bleu_counts, corpus_bleu, normalise

TEXTS = st.lists(st.sampled_from(["i", "like", "the", "Cats!", "and", "dogs"]), max_size=8).map(" ".join)
ROWS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=4)
SMOOTHINGS = ("exp", "floor", "add-k", "none")


def test_counts_of_a_worked_example():
    # reply: i like cats, 3 words. Answers: i like dogs a lot (4 words without "a") and cats like (2): both are one word off,
    # and the shorter one counts. Unigrams: i, like, cats; bigrams: i like; no trigram.
    counts = bleu_counts(["I like cats."], [["i like dogs a lot", "cats like"]])
    assert dict(zip(BLEU_COLUMNS, counts[0].tolist(), strict=True)) == {
        "reply_words": 3,
        "answer_words": 2,
        "matched_1": 3,
        "matched_2": 1,
        "matched_3": 0,
        "matched_4": 0,
        "all_1": 3,
        "all_2": 2,
        "all_3": 1,
        "all_4": 0,
    }
    # p = 1, 1/2 and, smoothed once, 1/2 of 1/1; three orders, no penalty: (1 * 1/2 * 1/2) ** (1/3)
    np.testing.assert_allclose(bleu(["I like cats."], [["i like dogs a lot", "cats like"]]), [0.25 ** (1 / 3)], rtol=1e-12)


def test_a_short_reply_is_penalised():
    # One word of four: p_1 = 1 over one order, exp(1 - 4/1).
    np.testing.assert_allclose(bleu(["cats"], [["i like cats much"]]), [math.exp(-3)], rtol=1e-12)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@given(ROWS)
def test_sentence_bleu_equals_sacrebleu(smoothing, rows):
    metric = sacrebleu.BLEU(tokenize="none", smooth_method=smoothing, effective_order=True)
    got = bleu([reply for reply, _ in rows], [answers for _, answers in rows], smoothing=smoothing)
    want = [metric.sentence_score(normalise(reply), [normalise(text) for text in answers]).score for reply, answers in rows]
    np.testing.assert_allclose(got, np.asarray(want) / 100, rtol=1e-12, atol=0)
    assert ((got >= 0) & (got <= 1)).all()


@given(ROWS)
def test_corpus_bleu_equals_sacrebleu(rows):
    replies = [reply for reply, _ in rows]
    most = max(len(answers) for _, answers in rows)
    streams = [[normalise(answers[place]) if place < len(answers) else None for _, answers in rows] for place in range(most)]
    metric = sacrebleu.BLEU(tokenize="none")
    want = metric.corpus_score([normalise(reply) for reply in replies], streams).score
    got = corpus_bleu(bleu_counts(replies, [answers for _, answers in rows]))
    assert got == pytest.approx(want / 100, rel=1e-12)
    # The docstring's signature is what sacrebleu says of it.
    assert "case:mixed|eff:no|tok:none|smooth:exp" in str(metric.get_signature())


def test_counts_of_a_resample_are_the_resample_of_counts():
    replies = ["i like cats", "good morning to you", "no"]
    answers = [["i like dogs"], ["good morning to all of you"], ["yes", "no no"]]
    rows = [2, 0, 0, 1]
    again = bleu_counts([replies[row] for row in rows], [answers[row] for row in rows])
    assert corpus_bleu(bleu_counts(replies, answers)[rows]) == corpus_bleu(again)
    assert math.isnan(corpus_bleu(bleu_counts([], [])))


@pytest.mark.parametrize(("reply", "answer"), [("", "hello"), ("hello", ""), ("", ""), ("?!", "the"), ("dog", "cat")])
def test_nothing_in_common_scores_nothing(reply, answer):
    assert [bleu([reply], [[answer]], smoothing=smoothing).tolist() for smoothing in SMOOTHINGS] == [[0.0]] * 4


def test_an_identical_reply_scores_one():
    assert bleu(["the", "I am fine, thanks a lot!"], [["x"], ["i am fine thanks lot"]]).tolist() == pytest.approx([0.0, 1.0])
