import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.scores import normalise, words


def squad(text):
    """The evaluation script of SQuAD 1.1, function by function."""

    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(text.lower())))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", ""),
        ("?!... ;-)", ""),
        ("The a AN the", ""),
        ("I'm  fine,\n\tthanks!", "im fine thanks"),
        ("A's an other", "as other"),  # punctuation goes first: "A's" is no article any more
        ("theatre another banana", "theatre another banana"),
        ("Ich LIEBE Käse – naïve Ärzte", "ich liebe käse – naïve ärzte"),
        ("I’m", "i’m"),  # a curly apostrophe is no ASCII punctuation
        ("日本 語", "日本 語"),
    ],
)
def test_normalises_as_squad(text, want):
    assert normalise(text) == squad(text) == want
    assert words(text) == want.split()


@given(st.text(alphabet=st.one_of(st.sampled_from("aA the.,'\n\u00a0’"), st.characters()), max_size=40))
def test_equals_the_evaluation_script_on_any_text(text):
    assert normalise(text) == squad(text)
