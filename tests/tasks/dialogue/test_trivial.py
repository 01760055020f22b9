import pytest

from grpo_pipeline.tasks.dialogue.scores import f1
from grpo_pipeline.tasks.dialogue.warning_signs import most_frequent_words, trivial_replies


def test_most_frequent_words_are_normalised_and_ties_go_by_alphabet():
    # dog 3, cat 2, zebra 2, i 1; "the" is no word
    replies = ["The dog, the dog!", "the zebra the cat", "I: cat? Dog... zebra"]
    assert most_frequent_words(replies, count=3) == "dog cat zebra"
    assert most_frequent_words(replies) == "dog cat zebra i"


def test_every_rule_answers_every_example():
    answers = [["Fine.", "Well!"], ["I have a dog"]]
    got = trivial_replies(
        ["hello you", "you"],
        ["how are you?\nand your cat? \n", " "],
        personas=[["i am tall.", "i sing."], "i like dogs."],
        answers=answers,
    )
    assert got == {
        "constant": ["i am good how are you"] * 2,
        "top_words": ["you hello"] * 2,
        "copy_last_turn": ["and your cat?", ""],
        "copy_persona": ["i am tall. i sing.", "i like dogs."],
        "reference": ["Fine.", "I have a dog"],
    }
    assert f1(got["reference"], answers).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"personas": ["p"]}, "must have one row per example, got 2, 1 and 2"),
        ({"answers": [["x"], []]}, "every example must have at least one answer, got none in row 1"),
        ({"training_replies": ["?", "the"]}, "training replies must hold some word, got none in 2 replies"),
    ],
)
def test_refuses(changes, message):
    given = {"training_replies": ["hi"], "contexts": ["a", "b"], "personas": ["p", "q"], "answers": [["x"], ["y"]]} | changes
    with pytest.raises(ValueError, match=message):
        trivial_replies(given.pop("training_replies"), given.pop("contexts"), **given)


def test_refuses_no_words():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        most_frequent_words(["hi"], count=0)
