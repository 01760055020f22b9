"""JSON lines become examples, or entries that say what is wrong with which line."""

import pytest
from tiny_dialogue import json_file, row

from grpo_pipeline.tasks.dialogue.data.readers import read_rows


def test_a_row_with_nothing_but_question_and_answers():
    rows = [row("i bake. i run.", "hi\njob?", ["i bake", "bread!"]), b"", row(answers=["x"], extra=1)]
    reading = read_rows(json_file(rows), names_splits=False)
    draft = reading.drafts[0]
    assert (draft.persona, draft.turns, draft.answers) == ("i bake. i run.", ("hi", "job?"), ("i bake", "bread!"))
    assert (draft.needs, draft.story_id, draft.split, draft.row) == ("unknown", "", "", 1)
    assert (reading.n_rows, reading.refused, reading.drafts[1].row) == (2, (), 3)
    assert reading.extras == {"ignored_keys": {"extra": 1}}


def test_ids_of_content_do_not_depend_on_the_order():
    rows = [row(answers=["a"]), row(answers=["b"]), row(answers=["a"])]
    found, turned = (read_rows(json_file(part), names_splits=False).drafts for part in (rows, rows[::-1]))
    assert len({draft.example_id for draft in found}) == 3
    assert {d.example_id: d.answers for d in found} == {d.example_id: d.answers for d in turned}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "caf\xe9"}', "the line must be UTF-8, got byte 0xe9 at 17"),
        (b"persona: x", "the line must be JSON, got 'persona: x'"),
        (
            b'{"question": "persona: a. context: b", "answers": ["x"], "answers": ["y"]}',
            "every key must be there once, got 'answers'",
        ),
        (b'{"question": ' + b"9" * 5000 + b"}", 'the line must be JSON, got \'{"question": 9999'),
        (b"[1]", "the line must be a JSON object, got list"),
        ({"answers": ["x"]}, "key 'question' must be there, got ['answers']"),
        ({"question": 3, "answers": ["x"]}, "'question' must be text, got int"),
        ({"question": "what?", "answers": ["x"]}, "question must read 'persona: … context: …'"),
        ({"question": "persona: a. context: b"}, "answers must be a list of at least one reply, got None"),
        (row(answers=[]), "answers must be a list of at least one reply, got []"),
        (row(answers=["a", " "]), "answers[1] must not be empty, got ' '"),
        (row(answers=["\ud800"]), "answers[0] must be UTF-8"),
        (row(needs="facts"), "needs must be one of ['persona', 'story', 'none', 'unknown'], got 'facts'"),
        (row(needs="story"), "story_id must name the story that the reply needs, got none"),
    ],
)
def test_bad_rows(line, reason):
    reading = read_rows(json_file([row(), line]), names_splits=False)
    assert len(reading.drafts) == 1
    (entry,) = reading.refused
    assert (entry["row"], entry["file"]) == (2, "/data/talk/rows.jsonl")
    assert entry["reason"].startswith(reason)
    assert "; " in entry["reason"] or "(" in entry["reason"]


def test_hidden_characters_are_removed_and_counted():
    shown = row("i bake.", "who are\nyou now", ["not evil", "a\tb"])
    hidden = row("i b\u202eake.", "who\x0bare\nyou\u2066 now", ["not\x00 \u200fevil", "a\tb"])
    found = read_rows(json_file([hidden]), names_splits=False)
    wanted = read_rows(json_file([shown]), names_splits=False)
    assert (found.drafts, found.hidden, wanted.hidden) == (wanted.drafts, 5, 0)


def test_splits_of_the_file():
    reading = read_rows(json_file([row(split="val"), row(), row(split="dev")]), names_splits=True)
    assert [draft.split for draft in reading.drafts] == ["val"]
    assert [entry["reason"].split(",")[0] for entry in reading.refused] == [
        "key 'split' must be there",
        "split must be one of ['train'",
    ]
    assert read_rows(json_file([row(split="dev")]), names_splits=False).drafts[0].split == ""
