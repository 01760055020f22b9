import math

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.scores import bleu, bleu_counts, corpus_bleu, normalise

TEXTS = st.lists(st.sampled_from(["i", "like", "the", "Cats!", "and", "dogs"]), max_size=8).map(" ".join)
ROWS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=4)
SMOOTHINGS = ("exp", "floor", "add-k", "none")


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
