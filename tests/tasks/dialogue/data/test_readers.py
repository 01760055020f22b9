"""JSON lines become examples, or entries that say what is wrong with which line."""

import json

import pytest
from tiny_dialogue import conversation_params, csv_file, json_file, row

from grpo_pipeline.tasks.dialogue.data.conversations import persona_stories, read_conversations
from grpo_pipeline.tasks.dialogue.data.example_rows import read_rows
from grpo_pipeline.tasks.dialogue.data.story_corpus import read_stories
from grpo_pipeline.tasks.text_lines import TextFile


def test_a_row_with_nothing_but_question_and_answers():
    rows = [row("i bake. i run.", "hi\njob?", ["i bake", "bread!"]), b"", row(answers=["x"], extra=1)]
    reading = read_rows(json_file(rows), names_splits=False)
    draft = reading.drafts[0]
    assert (draft.persona, draft.turns, draft.answers) == ("i bake. i run.", ("hi", "job?"), ("i bake", "bread!"))
    assert (draft.needs, draft.story_id, draft.split, draft.row) == ("unknown", "", "", 1)
    assert (reading.n_rows, reading.refused, reading.drafts[1].row) == (2, (), 3)
    assert reading.extras == {"ignored_keys": {"extra": 1}}


def test_ids_of_content_do_not_depend_on_the_order_and_repeats_get_their_own():
    rows = [row(answers=["a"]), row(answers=["b"]), row(answers=["a"])]
    found, turned = (read_rows(json_file(part), names_splits=False).drafts for part in (rows, rows[::-1]))
    assert len({draft.example_id for draft in found}) == 3
    assert {d.example_id: d.answers for d in found} == {d.example_id: d.answers for d in turned}
    rows = [("a", "b", TALK), ("c", "d", TALK), ("a", "b", TALK)]
    ids = {d.example_id for d in read(rows).drafts}
    assert len(ids) == 9
    assert ids == {d.example_id for d in read(rows[::-1]).drafts}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "caf\xe9"}', "the line must be UTF-8, got byte 0xe9 at 17"),
        (b"persona: x", "the line must be JSON, got 'persona: x'"),
        (b'{"question": "q", "answers": ["x"], "answers": ["y"]}', "every key must be there once, got 'answers'"),
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


def test_splits_of_the_file_and_one_story_per_persona():
    reading = read_rows(json_file([row(split="val"), row(), row(split="dev")]), names_splits=True)
    assert [draft.split for draft in reading.drafts] == ["val"]
    reasons = [entry["reason"].split(",")[0] for entry in reading.refused]
    assert reasons == ["key 'split' must be there", "split must be one of ['train'"]
    assert read_rows(json_file([row(split="dev")]), names_splits=False).drafts[0].split == ""
    stories = persona_stories({"I bake. I run.": "g1", "i run. I bake.": "g1", "I sing.": "g2"})
    assert sorted(story["persona_id"] for story in stories) == ["g1", "g2"]
    assert [story["story_id"] for story in stories] == sorted(story["story_id"] for story in stories)


def test_hidden_characters_are_removed_and_counted():
    shown = row("i bake.", "who are\nyou now", ["not evil", "a\tb"])
    hidden = row("i b\u202eake.", "who\x0bare\nyou\u2066 now", ["not\x00 \u200fevil", "a\tb"])
    found = read_rows(json_file([hidden]), names_splits=False)
    wanted = read_rows(json_file([shown]), names_splits=False)
    assert (found.drafts, found.hidden, wanted.hidden) == (wanted.drafts, 5, 0)
    assert read([("I bake.", "I\u202e sing.", TALK)]).hidden == 1


TALK = "Topic: food\nUser 1: Hi!\nUser 2: Hello!\n\nUser 1: How?\nslowly,\nthen fast\nUser 2: Well."


def read(rows, **changes):
    return read_conversations(csv_file(rows), conversation_params(**changes))


def test_every_reply_has_the_persona_of_its_speaker_and_the_turns_before_it():
    reading = read([("I bake.\nI run.", "I sing.", TALK)])
    rows = [(d.persona, d.partner, d.turns, d.answers) for d in reading.drafts]
    assert rows == [
        ("I sing.", "I bake. I run.", ("Hi!",), ("Hello!",)),
        ("I bake. I run.", "I sing.", ("Hi!", "Hello!"), ("How? slowly, then fast",)),
        ("I sing.", "I bake. I run.", ("Hello!", "How? slowly, then fast"), ("Well.",)),
    ]
    assert (reading.n_rows, reading.extras, reading.refused) == (1, {"turns": 4, "conversations_without_an_example": 0}, ())
    for changes, replies in (
        ({"replies": "first"}, ["How? slowly, then fast"]), ({"replies": "second"}, ["Hello!", "Well."]),
        ({"first_turn": 2}, ["How? slowly, then fast", "Well."]), ({"every": 2}, ["Hello!", "Well."]),
    ):  # fmt: skip
        assert [d.answers[0] for d in read([("a", "b", TALK)], **changes).drafts] == replies


def test_bad_conversations_and_tables_are_named_by_their_line():
    rows = [("a\na2", "b", TALK), ("", "b", TALK), ("a", "b", "hello"), ("a", "b", "User 1: Hi\nUser 2:\nUser 1: Oh")]
    reading = read(rows)
    assert [(entry["row"], entry["reason"].split(",")[0]) for entry in reading.refused] == [
        (11, "'one' must not be empty"),
        (19, "a conversation must have lines that begin with ['User 1'"),
        (20, "turn 1 must not be empty"),
    ]
    last = reading.drafts[-1]
    assert (last.row, last.turns, last.answers) == (20, ("Hi",), ("Oh",))
    good = csv_file([("a", "b", TALK), ("caf#", "b", TALK)])
    reading = read_conversations(TextFile(good.path, good.content.replace(b"#", b"\xe9")), conversation_params())
    assert len(reading.drafts) == 3
    assert reading.refused[0]["reason"].startswith("'one' must be UTF-8, got '\\udce9' at 3")
    with pytest.raises(ValueError, match=r"talk.csv must have the columns .* \['three'\]; it has \['one', 'two', 'talk'\]"):
        read([("a", "b", TALK)], personas=("one", "three"))
    for text, line, got in [
        ('a,b,User 1: hi\na,b,"User 1: never closed\na,b,User 1: lost\n', 3, "a quote that is never closed"),
        ("a,b," + "x" * 200_000 + "\n", 2, "a cell of more than 131072 characters"),
    ]:
        file = TextFile("/data/talk/talk.csv", f"one,two,talk\n{text}".encode())
        with pytest.raises(ValueError, match=f"talk.csv line {line} must be a row of a CSV table, got {got}"):
            read_conversations(file, conversation_params())


OPTIONAL = ("example_id", "persona_id", "needs", "story_id", "split")


@pytest.mark.parametrize("value", ["null", "NaN"])
@pytest.mark.parametrize("key", OPTIONAL)
def test_an_optional_key_without_a_value_is_as_if_absent(key, value):
    plain = read_rows(json_file([row()]), names_splits=False)
    line = json.dumps(row())[:-1] + f', "{key}": {value}}}'
    assert read_rows(json_file([line.encode()]), names_splits=False).drafts == plain.drafts


def test_a_story_without_a_title_and_ids_that_are_numbers():
    stories, refused, _ = read_stories(json_file([{"id": 3, "title": None, "text": "a b"}, {"id": 4.0, "text": "c"}]))
    assert ([story["story_id"] for story in stories], stories[0]["title"], refused) == (["3", "4"], "", [])
    reading = read_rows(json_file([row(needs="story", story_id=3.0, persona_id=7, example_id=5)]), names_splits=False)
    (draft,) = reading.drafts
    assert (draft.story_id, draft.given_id, draft.example_id) == ("3", "7", "5")


def test_of_stories_with_one_id_none_is_kept():
    stories, refused, _ = read_stories(json_file([{"id": name, "text": text} for name, text in ("ax", "by", "az")]))
    assert [story["story_id"] for story in stories] == ["b"]
    assert [entry["row"] for entry in refused] == [1, 3]


def test_a_key_that_must_be_there_and_is_null_is_told_so():
    reading = read_rows(json_file([row() | {"question": None}, row(), row(answers=["a", None])]), names_splits=False)
    assert [entry["reason"] for entry in reading.refused] == [
        "key 'question' must be there, got null; add it",
        "answers[1] must be text, got nothing; fill it or drop the row",
    ]


def test_a_turn_keeps_a_line_separator_of_unicode():
    (draft,) = read_rows(json_file([row(context="hi\u2028there\nyou\x0b?")]), names_splits=False).drafts
    assert draft.turns == ("hi\u2028there", "you ?")
    talk = "User 1: hi\u2028User 2: there\r\nUser 2: well\u2029done"
    (draft,) = read_conversations(csv_file([("a.", "b.", talk)]), conversation_params()).drafts
    assert (draft.turns, draft.answers) == (("hi\u2028User 2: there",), ("well\u2029done",))


def test_texts_have_one_unicode_form():
    reading = read_rows(
        json_file([row("i am Zoe\u0308.", answers=["o\u0308"]), row("i am Zo\u00eb.", answers=["\u00f6"])]), names_splits=False
    )
    assert {(draft.persona, draft.answers) for draft in reading.drafts} == {("i am Zo\u00eb.", ("\u00f6",))}


def test_conversations_without_an_example_and_rows_of_another_width_are_told():
    content = (
        csv_file([("a.", "b.", "User 1: hi"), ("a.", "b.", "User 1: hi\nUser 2: ho")]).content + b"c.,d.\ne.,f.,User 1: x,more\n"
    )
    reading = read_conversations(TextFile("t.csv", content), conversation_params())
    assert reading.extras["conversations_without_an_example"] == 1
    assert [entry["reason"] for entry in reading.refused] == [
        "the row must have 3 cells as the header has, got 2; complete it or leave it out",
        "the row must have 3 cells as the header has, got 4; put cells with commas in quotes",
    ]


def test_turns_on_one_line_are_parted_by_their_marks():
    told = "Q: hello , R: is it ? fine ! Q: R: I am R:2 . and\nQ: so"
    given = {"question": f"persona: i bake. context:  {told}", "answers": ["x"]}
    (draft,) = read_rows(json_file([given]), names_splits=False, marks=["Q:", "R:"]).drafts
    assert draft.turns == ("hello ,", "is it ? fine !", "I am R:2 . and", "so")
    (draft,) = read_rows(json_file([given]), names_splits=False).drafts
    assert draft.turns == ("Q: hello , R: is it ? fine ! Q: R: I am R:2 . and", "Q: so")
    nothing = read_rows(
        json_file([given | {"question": "persona: i bake. context: Q: R: "}]), names_splits=False, marks=["Q:", "R:"]
    )
    assert "the context of a question must not be empty" in nothing.refused[0]["reason"]
