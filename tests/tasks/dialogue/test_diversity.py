import math

import numpy as np
import pytest

from grpo_pipeline.tasks.dialogue.scores import bleu, distinct, length, self_bleu


def test_distinct_counts_kinds_over_all_replies():
    replies = ["I like cats", "i like the dogs!", ""]
    # i like cats i like dogs: 4 kinds of 6. Bigrams: i-like, like-cats, i-like, like-dogs: 3 kinds of 4, none across replies.
    assert distinct(replies, n=1) == 4 / 6
    assert distinct(replies, n=2) == 3 / 4
    assert math.isnan(distinct(["a the", "?"], n=1))
    assert math.isnan(distinct(["one", "two"], n=2))
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        distinct(replies, n=0)


def test_self_bleu_takes_the_others_of_the_group_as_answers():
    groups = [["i like cats", "i like cats", "i like dogs"], ["one"], ["good morning", "see you"], ["hi you", "hi you"]]
    got = self_bleu(groups)
    naive = np.mean([bleu([groups[0][g]], [[groups[0][h] for h in range(3) if h != g]])[0] for g in range(3)])
    assert got[0] == pytest.approx(naive, rel=1e-15)
    assert math.isnan(got[1])
    assert got[2] == 0.0
    assert got[3] == pytest.approx(1.0, rel=1e-15)
    assert self_bleu([]).shape == (0,)


def test_length_is_of_the_reply_as_it_stands():
    assert length(["the the\nthe", "", " ?  ! ", "naïve"]).tolist() == [3, 0, 2, 1]
