import numpy as np

from grpo_pipeline.tasks.dialogue.metrics import COUNTS
from grpo_pipeline.tasks.dialogue.scores import bleu, bleu_counts, corpus_bleu, f1, rouge_l, score_replies

REPLIES = ["I like the cats!", "", "good morning to you"]
ANSWERS = [["i like dogs", "cats"], ["hello"], ["good morning to all of you"]]


def test_columns_are_the_values_of_the_rewards():
    columns = score_replies(REPLIES, ANSWERS, smoothing="floor")
    np.testing.assert_array_equal(columns["f1"], f1(REPLIES, ANSWERS))
    np.testing.assert_array_equal(columns["rouge_l"], rouge_l(REPLIES, ANSWERS))
    np.testing.assert_array_equal(columns["bleu"], bleu(REPLIES, ANSWERS, smoothing="floor"))
    assert columns["length"].tolist() == [4, 0, 4]
    assert {len(column) for column in columns.values()} == {3}


def test_counts_survive_the_table():
    columns = score_replies(REPLIES, ANSWERS)
    stacked = np.stack([columns[name] for name in COUNTS], axis=1)
    np.testing.assert_array_equal(stacked, bleu_counts(REPLIES, ANSWERS))
    assert corpus_bleu(stacked) > 0
