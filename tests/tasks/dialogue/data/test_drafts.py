"""Questions are put together, taken apart and shortened as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.data.persona_groups import group_names, persona_key
from grpo_pipeline.tasks.dialogue.data.question import fit_question, format_question, parse_question
from grpo_pipeline.tasks.row_error import RowError

TURN = st.text("aé日😀:.", min_size=1, max_size=12)  # of 1 to 4 bytes


def test_parse_undoes_format_or_says_what_is_missing():
    text = format_question("i bake. i run.", "hi\nwhat is your job?")
    assert parse_question(text) == ("i bake. i run.", ["hi", "what is your job?"])
    assert parse_question("persona: i bake.\ni run.  context: \n hi \n\n") == ("i bake. i run.", ["hi"])
    for question, message in [
        ("what is your job?", "must read 'persona: … context: …'"),
        ("persona: context: hi", "the persona of a question must not be empty"),
        ("persona: i bake. context: \n ", "the context of a question must not be empty"),
    ]:
        with pytest.raises(RowError, match=message):
            parse_question(question)


@given(turns=st.lists(TURN, min_size=1, max_size=5), max_bytes=st.integers(40, 90))
def test_the_oldest_go_first_and_the_persona_stays(turns, max_bytes):
    persona = "i bake."
    fitted = fit_question(persona, turns, max_bytes=max_bytes)
    assert len(fitted.text.encode()) <= max_bytes
    assert fitted.text == f"persona: {persona} context: {fitted.context}"
    kept = turns[fitted.dropped_turns :]
    if fitted.is_cut:
        assert len(kept) == 1
        assert kept[0].endswith(fitted.context)
        assert kept[0] != fitted.context
    else:
        assert fitted.context == "\n".join(kept)
    if fitted.dropped_turns:  # one turn more would not have fitted
        assert len(format_question(persona, "\n".join(turns[fitted.dropped_turns - 1 :])).encode()) > max_bytes


def test_what_does_not_fit_is_cut_at_a_character():
    # "persona: x context: " has 20 bytes; é has 2, so that 5 bytes hold two of them.
    fitted = fit_question("x", ["é" * 9], max_bytes=25)
    assert (fitted.context, fitted.is_cut, fitted.dropped_turns) == ("éé", True, 0)


def test_turns_and_characters_that_fit_exactly_stay():
    """persona: x context: takes 20 bytes, the turns ab and cd with the line between them 5."""
    for max_bytes, expected in ((25, ("ab\ncd", False, 0)), (24, ("cd", False, 1)), (22, ("cd", False, 1)), (21, ("d", True, 1))):
        fitted = fit_question("x", ["ab", "cd"], max_bytes=max_bytes)
        assert (fitted.context, fitted.is_cut, fitted.dropped_turns) == expected
    with pytest.raises(RowError, match="the persona must leave room for a context in 20 bytes, got 1 bytes"):
        fit_question("x", ["ab"], max_bytes=20)


NAME = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(NAME, NAME), max_size=12), st.randoms())
def test_groups_are_what_merging_sets_gives(links, random):
    sets: list[set[str]] = []
    for pair in links:
        touching = [group for group in sets if group & set(pair)]
        sets = [group for group in sets if group not in touching] + [set(pair).union(*touching)]
    expected = {name: min(group) for group in sets for name in group}
    shuffled = list(links)
    random.shuffle(shuffled)
    assert group_names(links) == group_names(shuffled) == expected


def test_sentences_in_another_order_are_the_same_persona():
    sentences = np.array(["I bake.", "I have a dog.", "I run."])
    assert persona_key(" ".join(sentences)) == persona_key("  ".join(sentences[[2, 0, 1]]).lower())
    assert persona_key("I bake.") != persona_key("I run.")
