import math
import re
import string
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

from grpo_pipeline.tasks.dialogue.evaluation.metrics import COUNTS, COUNTS_13A
from grpo_pipeline.tasks.dialogue.scores import bleu, diversity, f1, normalisation, rouge, rouge101, score_table

REPLIES = ["I like the cats!", "", "good morning to you"]
ANSWERS = [["i like dogs", "cats"], ["hello"], ["good morning to all of you"]]


def test_columns_are_the_values_of_the_rewards():
    columns = score_table.score_replies(REPLIES, ANSWERS)
    np.testing.assert_array_equal(columns["f1"], f1.f1(REPLIES, ANSWERS))
    np.testing.assert_array_equal(columns["rouge_l"], rouge.rouge_l(REPLIES, ANSWERS))
    np.testing.assert_array_equal(columns["bleu"], bleu.bleu(REPLIES, ANSWERS))
    assert columns["length"].tolist() == [4, 0, 4]
    assert {len(column) for column in columns.values()} == {3}
    stacked = np.stack([columns[name] for name in COUNTS], axis=1)
    np.testing.assert_array_equal(stacked, bleu.bleu_counts(REPLIES, ANSWERS))
    assert bleu.corpus_bleu(stacked) > 0
    theirs = np.stack([columns[name] for name in COUNTS_13A], axis=1)
    np.testing.assert_array_equal(theirs, bleu.bleu_counts(REPLIES, ANSWERS, words="13a"))
    np.testing.assert_array_equal(columns["rouge_l_rouge101"], rouge101.rouge_l_rouge101(REPLIES, ANSWERS))


TEXTS = st.lists(st.sampled_from(["i", "like", "the", "Cats!", "?", "é", "cats"]), max_size=8).map(" ".join)
ROWS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=4)


@settings(max_examples=60)
@given(ROWS)
def test_sentence_bleu_equals_sacrebleu(rows):
    metric = sacrebleu.BLEU(tokenize="none", smooth_method="exp", effective_order=True)
    got = bleu.bleu([reply for reply, _ in rows], [answers for _, answers in rows])
    normal = normalisation.normalise
    want = [metric.sentence_score(normal(reply), [*map(normal, answers)]).score for reply, answers in rows]
    np.testing.assert_allclose(got, np.asarray(want) / 100, rtol=1e-12, atol=0)
    assert ((got >= 0) & (got <= 1)).all()


@settings(max_examples=40)
@given(ROWS)
def test_corpus_bleu_equals_sacrebleu(rows):
    replies = [reply for reply, _ in rows]
    most = max(len(answers) for _, answers in rows)
    streams = [[normalisation.normalise(a[place]) if place < len(a) else None for _, a in rows] for place in range(most)]
    metric = sacrebleu.BLEU(tokenize="none")
    want = metric.corpus_score([normalisation.normalise(reply) for reply in replies], streams).score
    got = bleu.corpus_bleu(bleu.bleu_counts(replies, [answers for _, answers in rows]))
    assert got == pytest.approx(want / 100, rel=1e-12)
    assert math.isnan(bleu.corpus_bleu(bleu.bleu_counts([], [])))
    # The docstring's signature is what sacrebleu says of it.
    assert "case:mixed|eff:no|tok:none|smooth:exp" in str(metric.get_signature())


AWKWARD = ["i", "The", "the", "cats,", "1,000", "3.5", ".", "..", "\u00e9", "\u2014", "don't", "\u732b", "&amp;", "<b>", "\n"]
PIECES = st.lists(st.sampled_from(AWKWARD), max_size=9).map(" ".join)
PUBLISHED = st.lists(st.tuples(PIECES, st.lists(PIECES, min_size=1, max_size=3)), min_size=1, max_size=4)


@settings(max_examples=100)
@given(PUBLISHED)
def test_the_counts_of_words_13a_make_the_corpus_bleu_of_sacrebleu(rows):
    replies, answers = [reply for reply, _ in rows], [answers for _, answers in rows]
    streams = [[one[place] if place < len(one) else None for one in answers] for place in range(max(map(len, answers)))]
    metric = sacrebleu.BLEU()
    want = metric.corpus_score(replies, streams).score / 100
    assert bleu.corpus_bleu(bleu.bleu_counts(replies, answers, words="13a")) == pytest.approx(want, rel=1e-12)
    assert "case:mixed|eff:no|tok:13a|smooth:exp" in str(metric.get_signature())


@settings(max_examples=150)
@given(PUBLISHED)
def test_rouge_l_rouge101_is_the_best_of_the_package_rouge(rows):
    def published(reply, answer):
        try:
            return Rouge(metrics=["rouge-l"]).get_scores(reply, answer)[0]["rouge-l"]["f"]
        except ValueError:  # no sentence on one side, which is 0 where the package is used
            return 0.0

    got = rouge101.rouge_l_rouge101([reply for reply, _ in rows], [answers for _, answers in rows])
    assert got.tolist() == [max(published(reply, answer) for answer in answers) for reply, answers in rows]


def test_rouge_l_rouge101_by_hand_and_of_a_text_that_is_too_long_for_the_package():
    # "a b d" and "e" are common; 5 different words in the reply, 6 in the answer.
    [found] = rouge101.rouge_l_rouge101(["a b d x. e"], [["a b c d. e f"]])
    assert found == pytest.approx(2 * (4 / 5) * (4 / 6) / (4 / 5 + 4 / 6 + 1e-8))
    long = " ".join(f"w{place}" for place in range(1200))
    with pytest.raises(RecursionError):
        Rouge(metrics=["rouge-l"]).get_scores(long, long)
    assert rouge101.rouge_l_rouge101([long], [[long]]) == pytest.approx(1.0)


@settings(max_examples=40)
@given(ROWS)
def test_f1_is_the_best_of_the_evaluation_script_of_squad(rows):
    def squad_f1(prediction, truth):
        prediction, truth = normalisation.normalise(prediction).split(), normalisation.normalise(truth).split()
        same = sum((Counter(prediction) & Counter(truth)).values())
        precision, recall = same / max(len(prediction), 1), same / max(len(truth), 1)
        return 2 * precision * recall / (precision + recall) if same else 0

    got = f1.f1([reply for reply, _ in rows], [answers for _, answers in rows])
    want = [max(squad_f1(reply, answer) for answer in answers) for reply, answers in rows]
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=0)
    assert got.dtype == np.float64
    for replies, answers, message in (
        (["a"], [], "answers must have one row per reply, got 0 for 1 replies"),
        (["a", "b"], [["x"], []], r"the answers of row 1 must be a list of at least one text, got \[\]"),
        (["a"], ["x"], "the answers of row 0 must be a list of at least one text, got 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            f1.f1(replies, answers)


WORDS = st.lists(st.sampled_from(["cat", "dog", "sat", "mat", "on"]), min_size=1, max_size=7)


@settings(max_examples=40)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_rouge_is_the_best_of_the_package_where_its_own_words_are_ours(reply, answers):
    own = RougeScorer(["rouge1", "rouge2", "rougeL"])
    each = [[score.fmeasure for score in own.score(" ".join(answer), " ".join(reply)).values()] for answer in answers]
    got = rouge.rouge([" ".join(reply)], [[" ".join(answer) for answer in answers]])
    assert [got[name][0] for name in ("rouge_1", "rouge_2", "rouge_l")] == np.max(each, axis=0).tolist()


def test_words_of_rouge_are_the_normalised_ones_and_texts_without_score_nothing():
    # The package alone would find no letter in Käse's umlaut and in Japanese, and count "the".
    assert rouge.rouge_l(["the Käse", "日本"], [["KÄSE!"], ["日本"]]).tolist() == [1.0, 1.0]
    empty = rouge.rouge(["", "hello", "", "the?!"], [["hello"], [""], [""], ["an ..."]])
    assert {name: score.tolist() for name, score in empty.items()} == dict.fromkeys(("rouge_1", "rouge_2", "rouge_l"), [0.0] * 4)
    with pytest.raises(ValueError, match=r"must be among \['rouge_1', 'rouge_2', 'rouge_l'\], got \['rouge_9'\]"):
        rouge.rouge(["a"], [["b"]], names=("rouge_9",))


@given(st.text(alphabet=st.one_of(st.sampled_from("aA the.,'\n\u00a0’"), st.characters()), max_size=40))
def test_words_are_those_of_the_evaluation_script_of_squad(text):
    assume(not normalisation.is_without_blanks(text))
    without = "".join(ch for ch in text.lower() if ch not in string.punctuation)
    assert normalisation.normalise(text) == " ".join(re.sub(r"\b(a|an|the)\b", " ", without).split())
    assert diversity.length([text]).tolist() == [len(text.split())]


def test_distinct_counts_kinds_over_all_replies():
    replies = ["I like cats", "i like the dogs!", ""]
    # i like cats i like dogs: 4 kinds of 6. Bigrams: i-like, like-cats, i-like, like-dogs: 3 kinds of 4, none across replies.
    assert diversity.distinct(replies, n=1) == 4 / 6
    assert diversity.distinct(replies, n=2) == 3 / 4
    assert math.isnan(diversity.distinct(["a the", "?"], n=1))
    assert math.isnan(diversity.distinct(["one", "two"], n=2))
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        diversity.distinct(replies, n=0)


def test_self_bleu_takes_the_others_of_the_group_as_answers():
    groups = [["i like cats", "i like cats", "i like dogs"], ["one"], ["good morning", "see you"], ["hi you", "hi you"]]
    naive = np.mean([bleu.bleu([groups[0][g]], [[groups[0][h] for h in range(3) if h != g]])[0] for g in range(3)])
    np.testing.assert_allclose(diversity.self_bleu(groups), [naive, np.nan, 0.0, 1.0], rtol=1e-15)
    assert diversity.self_bleu([]).shape == (0,)


def test_scripts_without_blanks_are_words_of_one_character():
    # 你好 against 你们好: two of 2 and 3 characters in common, 2 * 2 / 5; the full stop of that script is no word.
    assert normalisation.words("你们好。") == ["你", "们", "好"]
    np.testing.assert_allclose(f1.f1(["你好"], [["你们好。"]]), [0.8])
    # A vowel or tone that stands on a Thai consonant belongs to it; kana count one by one, Korean keeps its blanks.
    assert normalisation.words("ที่นี่") == ["ที่", "นี่"]
    assert normalisation.words("ねこ GPT4 猫") == ["ね", "こ", "gpt4", "猫"]
    assert normalisation.words("안녕 하세요") == ["안녕", "하세요"]
    np.testing.assert_array_equal(diversity.length(["你们好。", "two words"]), [3, 2])
    found = score_table.score_replies(["我喜欢猫和狗"], [["我喜欢猫和鱼"]])
    # Six characters each, five of them and four pairs in common: 2 * 5 / 12, 2 * 4 / 10.
    np.testing.assert_allclose([found["rouge_1"][0], found["rouge_2"][0]], [5 / 6, 0.8])
    assert found["bleu"][0] > 0.6
