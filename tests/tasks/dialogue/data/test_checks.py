"""Checked data: what is kept, what is refused and why, what the report says."""

import hashlib

import pytest
from tiny_dialogue import ROOT, STORIES, conversation_params, csv_file, data_params, raw_files, row

from grpo_pipeline.tasks.dialogue.data.checks import check_dialogues
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles


def check(rows, stories=STORIES, **changes):
    return check_dialogues(raw_files(rows, stories), {}, data_params(**changes))


def test_sound_rows():
    rows = [row(example_id="0012", needs="story", story_id="s1"), row("i sing.", answers=["a", "b"], persona_id="p")]
    checked, stories, quarantine, report = check(rows, on_bad_row="fail")
    first = checked.iloc[0]
    assert (first["example_id"], first["question"]) == ("0012", "persona: i bake. context: hi")
    assert (checked["subject_id"].tolist()[1], stories["story_id"].tolist(), len(quarantine)) == ("p", ["s1", "s2"], 0)
    assert (report["examples"], report["persona_groups"], report["stories"]) == (2, 2, 2)
    assert report["needs"] == {"persona": 0, "story": 1, "none": 0, "unknown": 1}
    assert report["answers_per_example"] == {"1": 1, "2": 1}
    assert report["bytes"] == {"question": {"mean": 28.0, "max": 28}, "answer": {"mean": 2.3, "max": 5}}  # (5 + 1 + 1) / 3
    assert report["sha256"]["rows.jsonl"] == hashlib.sha256(raw_files(rows).examples.content).hexdigest()


def test_what_is_refused():
    for rows, stories, reason in (
        ([row(example_id="x"), row("i sing.", example_id="x")], STORIES, "example id 'x' must be unique, got it 2 times"),
        ([row(story_id="s9")], STORIES, "story_id must be in the story corpus, got 's9'"),
        ([row("y" * 150)], STORIES, "the persona must leave room for a context in 160 bytes, got 150 bytes"),
        ([], [*STORIES, {"id": "s2", "title": "", "text": "again"}], "story id 's2' must be unique, got it 2 times"),
        ([], [*STORIES, {"id": "s3", "title": "t"}], "key 'text' must be there, got ['id', 'title']"),
        ([], [*STORIES, b"{"], "the line must be JSON, got '{'"),
    ):
        sound = row("i swim.", answers=["ok"])
        checked, kept, quarantine, report = check([sound, *rows], stories)
        assert checked["persona"].tolist() == ["i swim."]
        assert quarantine["reason"].str.startswith(reason).all()
        assert report["refused"] == len(quarantine) > 0
        assert "s1" in kept["story_id"].tolist()
        assert kept["story_id"].is_unique
        with pytest.raises(ValueError, match=r"line \d.*set dialogue.data.on_bad_row: quarantine"):
            check([sound, *rows], stories, on_bad_row="fail")


def test_the_quarantine_is_in_the_order_of_the_files_examples_first():
    stories = [b"{", *STORIES, {"id": "s2", "title": "", "text": "again"}]
    rows = [row("y" * 150), row("i swim."), row(story_id="s9"), b"{"]
    _, _, quarantine, _ = check(rows, stories)
    first = raw_files(rows).examples.path
    wanted = [(first, 1), (first, 3), (first, 4), *((raw_files(rows).stories.path, line) for line in (1, 3, 4))]
    assert list(zip(quarantine["file"], quarantine["row"], strict=True)) == wanted


def test_one_id_or_text_in_any_order_of_sentences_is_one_persona_in_one_split():
    rows = [row("i bake. i run.", split="train"), row("i run. i bake.", split="test"), row("i sing.", split="val")]
    checked, _, quarantine, _ = check(rows, source={"kind": "jsonl", "splits_from": "file"})
    assert checked["split"].tolist() == ["val"]
    assert quarantine["reason"].str.contains(r"must be in one split, got \['test', 'train'\]").tolist() == [True, True]
    rows = [row("i bake.", persona_id="b"), row("i run.", persona_id="b"), row("i run.", persona_id="a"), row("i sing.")]
    ids = check(rows)[0]["subject_id"].tolist()
    assert ids[:3] == ["a", "a", "a"]
    assert ids[3].startswith("group-")


def test_lengths_are_those_of_bytes():
    report = check([row("i b\u00e4ke.", answers=["\u00e9\u00e9"]), row("i sing.", answers=["a"])])[3]
    assert report["bytes"]["answer"] == {"mean": 2.5, "max": 4}
    assert report["bytes"]["question"]["max"] == len("persona: i bäke. context: hi".encode())


def test_hidden_characters_of_examples_and_stories_are_counted_together():
    stories = [{"id": "s1", "title": "t", "text": "a\u202e b\u2066"}, {"id": "s2", "title": "", "text": "c d"}]
    report = check([row("i b\u202eake."), row("i sing.")], stories)[3]
    assert report["removed_hidden_characters"] == 3


def test_shortened_questions_are_counted():
    long = row("i bake.", "\n".join(["first turn"] * 3 + ["x" * 50]))
    checked, _, _, report = check([long, row(answers=["b"])], max_question_bytes=90)
    # 26 bytes of frame and persona, 50 + 1 + 10 of context leave 3
    counts = {"max_question_bytes": 90, "questions": 1, "dropped_turns": 2, "cut_turns": 0}
    assert report["shortened"].items() >= counts.items()
    assert checked["context"].tolist()[0] == "first turn\n" + "x" * 50


def conversations(partners):
    rows = [("a", "b", "User 1: x\nUser 2: y"), ("b", "c", "User 1: x\nUser 2: y"), ("d", "e", "User 1: x\nUser 2: y")]
    params = data_params(source=conversation_params(stories_from="personas", partners=partners))
    return check_dialogues(DialogueFiles(ROOT, csv_file(rows), None), {}, params)


def test_speakers_are_grouped_as_asked():
    checked, stories, _, _ = conversations("together")
    first, second, third = checked["subject_id"]
    assert first == second != third
    assert checked["partner_id"].tolist() == [first, second, third]
    assert stories["persona_id"].value_counts().to_dict() == {first: 3, third: 2}
    checked, stories, _, _ = conversations("apart")
    assert len({*checked["subject_id"], *checked["partner_id"]}) == 5
    assert checked["subject_id"].tolist()[0] == checked["partner_id"].tolist()[1]  # b
    assert stories["persona_id"].is_unique


def test_files_and_settings_that_do_not_go_together():
    for files, generated, changes, message in (
        (raw_files([row()]), {"examples": 4}, {"source": {"kind": "generated"}}, "must hold the 4 generated examples"),
        (raw_files([row()], None), {}, {}, "must hold the story corpus, got no such file"),
        (raw_files([row()], []), {}, {}, "must hold stories, got none"),
        (raw_files([b"{"]), {}, {}, "all rows are bad, 1 of 1, there is nothing"),
        (raw_files([row()]), {}, {"root": "/data/other"}, "folder of the dataset dialogue.raw, /data/talk, got '/data/other'"),
        (None, {}, {"source": {"kind": "conversations"}}, "source.conversations.conversation\n.*Field required"),
        (None, {}, {"source": conversation_params().model_dump() | {"kind": "jsonl"}}, "source.jsonl.conversation"),
        (None, {}, {"source": {"kind": "generated", "splits_from": "file"}}, "source.generated.splits_from"),
        (None, {}, {"source": conversation_params().model_dump() | {"splits_from": "file"}}, "conversations.splits_from"),
        (None, {}, {"source": {"kind": "generated", "stories_from": "personas"}}, "source.generated.stories_from"),
        (None, {}, {"source": {"stories_from": "personas"}}, "Unable to extract tag using discriminator 'kind'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_dialogues(files, generated, data_params(**changes))
        with pytest.raises(ValueError, match="two different names, got 'one' twice"):
            conversation_params(personas=("one", "one"))
