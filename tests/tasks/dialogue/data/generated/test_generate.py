"""The generated dialogues: stable, short, answerable from what is read, and not by a trivial reply."""

import re
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_dialogue import persona_params

from grpo_pipeline.tasks.dialogue.data.generated import vocabulary
from grpo_pipeline.tasks.dialogue.data.generated.generate import generate_rows, generate_stories
from grpo_pipeline.tasks.dialogue.data.question import parse_question
from grpo_pipeline.tasks.dialogue.scores import normalisation
from grpo_pipeline.tasks.dialogue.scores.f1 import f1


def average(rows, reply_of):
    return f1([reply_of(row) for row in rows], [row["answers"] for row in rows]).mean()


def test_adding_personas_changes_none_before_and_extra_stories_are_those_of_nobody():
    few, many = persona_params(personas=10), persona_params(personas=40)
    assert generate_rows(many)[: 10 * 6] == generate_rows(few)
    told = [generate_stories(params) for params in (few, many)]
    assert all(story in told[1] for story in told[0])
    assert generate_rows(persona_params(seed=1)) != generate_rows(many)
    own = [generate_stories(params.model_copy(update={"extra_stories": 0})) for params in (few, many)]
    extra = [[story for story in both if story not in without] for both, without in zip(told, own, strict=True)]
    assert len(extra[0]) == 7
    assert extra[0] == extra[1]


def test_a_reply_follows_from_what_is_read_and_shares_are_those_asked_for():
    params = persona_params(personas=200)
    stories, rows = {story["id"]: story["text"] for story in generate_stories(params)}, generate_rows(params)
    assert len({row["example_id"] for row in rows}) == len(rows) == 1200
    assert (len(stories), len({parse_question(row["question"])[0] for row in rows})) == (207, 200)
    for row in rows:
        persona, turns = parse_question(row["question"])
        known = [value for values in vocabulary.VALUES.values() for value in values]
        values = [value for value in known if f" {value} " in f" {row['answers'][0]} "]
        if row["needs"] == "persona":
            assert len(values) == 1
            assert values[0] in persona
            assert values[0] not in " ".join(turns)
        elif row["needs"] == "story":
            verb, colour, thing = (
                next(w for w in options if re.search(rf"\b{w}\b", row["answers"][0]))
                for options in (vocabulary.VERBS, vocabulary.COLOURS, vocabulary.OBJECTS)
            )
            assert f"{verb} a {colour} {thing}" in stories[row["story_id"]]
            assert not {verb, colour, thing} & set(normalisation.words(row["question"]))
        else:
            assert row["story_id"] == ""
            assert not set(values) & set(normalisation.words(persona))
    # 1200 draws: the standard deviation of a share is at most 0.0145; five of them.
    shares = {kind: np.mean([row["needs"] == kind for row in rows]) for kind in params.needs.model_dump()}
    assert shares == pytest.approx(params.needs.model_dump(), abs=0.075)
    assert np.mean([len(row["answers"]) == 2 for row in rows]) == pytest.approx(0.5, abs=0.075)


def test_a_question_is_first_answered_in_its_own_form_and_stories_differ():
    params = persona_params(personas=120)
    rows, stories = generate_rows(params), generate_stories(params)
    assert np.mean([len(row["answers"]) == 2 for row in rows]) == pytest.approx(0.5, abs=0.075)  # 720 draws, deviation 0.019
    compared = 0
    for row in rows:
        asked, said = parse_question(row["question"])[1][-1], row["answers"]
        for name, phrasings in vocabulary.QUESTIONS.items():
            if row["needs"] == "persona" and asked in phrasings:
                phrasing, forms = phrasings.index(asked), vocabulary.REPLIES[name]
                values = vocabulary.VALUES[name]
                assert said[0] in [forms[phrasing].format(value) for value in values]
                assert len(said) == 1 or said[1] in [forms[1 - phrasing].format(value) for value in values]
                compared += 1
    assert compared > 200
    for options in (vocabulary.VERBS, vocabulary.COLOURS, vocabulary.PLACES):
        assert all(any(re.search(rf"\b{word}\b", story["text"]) for story in stories) for word in options)


def test_trivial_replies_are_bad():
    rows = generate_rows(persona_params(personas=60))
    counts = Counter(word for row in rows for word in normalisation.words(row["answers"][0]))
    frequent = [word for word, _ in counts.most_common(12)]
    constant = {answer for row in rows[:80] for answer in row["answers"]} | {" ".join(frequent[:n]) for n in range(1, 13)}
    trivial = [lambda row, reply=reply: reply for reply in constant]
    trivial += [lambda row: parse_question(row["question"])[1][-1], lambda row: parse_question(row["question"])[0]]
    assert average(rows, lambda row: row["answers"][0]) == 1.0
    assert max(average(rows, reply_of) for reply_of in trivial) < 0.35


def test_what_cannot_be_generated_is_refused():
    for name, value, message in (
        ("personas", 784, r"personas \+ extra_stories must be at most 784, one per job and town, got 791"),
        ("needs", {"persona": 0.5, "story": 0.3, "none": 0.3}, "must add up to 1, got 1.1"),
    ):
        with pytest.raises(ValidationError, match=message):
            persona_params(**{name: value})
