import numpy as np
import pytest
import sacrebleu

from grpo_pipeline.tasks.dialogue.metrics import weighted_corpus_bleu
from grpo_pipeline.tasks.dialogue.scores import bleu_counts, corpus_bleu

WORDS = ["cat", "dog", "ran", "home", "red", "big", "sun"]


def table(*, seed, n=14, longest=9):
    generator = np.random.default_rng(seed)
    text = lambda: " ".join(generator.choice(WORDS, size=generator.integers(0, longest)))  # noqa: E731
    replies, answers = [text() for _ in range(n)], [[text(), text()] for _ in range(n)]
    return replies, answers, generator.multinomial(n, np.full(n, 1 / n), size=20).astype(float)


@pytest.mark.parametrize("longest", [3, 5, 9, 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_resample_has_the_bleu_of_the_table_that_repeats_its_rows(seed, longest):
    replies, answers, weights = table(seed=seed, longest=longest)
    counts = bleu_counts(replies, answers)
    expected = [corpus_bleu(np.repeat(counts, w.astype(int), axis=0)) for w in weights]
    np.testing.assert_allclose(weighted_corpus_bleu(counts, weights), expected, rtol=1e-12, atol=1e-15)


def test_weights_of_one_give_what_sacrebleu_says():
    replies, answers, _ = table(seed=7, n=30, longest=20)
    counts = bleu_counts(replies, answers)
    said = sacrebleu.corpus_bleu(replies, list(zip(*answers, strict=True)), tokenize="none").score / 100
    assert said > 0.05
    assert weighted_corpus_bleu(counts, np.ones((1, 30)))[0] == pytest.approx(said, rel=1e-12)


def test_an_order_without_a_match_is_halved_and_not_zero():
    # 4 of 4 words, 0 of 3 pairs, 0 of 2, 0 of 1: (1 * 1/(2*3) * 1/(4*2) * 1/(8*1)) ** (1/4)
    counts = bleu_counts(["dog cat ran home"], [["home ran cat dog"]])
    assert weighted_corpus_bleu(counts, np.ones((1, 1)))[0] == pytest.approx((1 / (6 * 8 * 8)) ** 0.25)


@pytest.mark.parametrize("reply", ["", "the", "dog", "blue"])
def test_no_match_or_no_reply_of_four_words_is_zero(reply):
    assert weighted_corpus_bleu(bleu_counts([reply], [["dog"]]), np.ones((1, 1)))[0] == 0.0


def test_a_resample_without_rows_is_undefined():
    assert np.isnan(weighted_corpus_bleu(bleu_counts(["dog"], [["dog"]]), np.zeros((1, 1)))[0])
