"""A folder with a file for each split is read as it is; a split without a file is drawn from the personas of train."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny_dialogue import data_params, retrieval_params

from grpo_pipeline.tasks.dialogue.data.checks import check_dialogues
from grpo_pipeline.tasks.dialogue.data.dataset_folder import DatasetFolder, parts_by_split
from grpo_pipeline.tasks.dialogue.data.examples import build_examples
from grpo_pipeline.tasks.dialogue.data.params import DialogueSplitParams
from grpo_pipeline.tasks.dialogue.data.splits import Splits, split_personas
from grpo_pipeline.tasks.dialogue.data.story_index import index_stories
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.text_lines import TextFile

FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25}
HOBBIES = ["bread", "kites", "chess", "yoga", "opera", "tennis", "poker", "jazz", "bees", "clay", "trains", "cacti"]


def lapdog_rows(hobbies: Sequence[str]) -> list[dict[str, Any]]:
    """Write two rows of each persona in the form of LAPDOG's files: the turns of a context stand on one line, behind marks."""
    rows = []
    for hobby in hobbies:
        persona = f"persona: i love {hobby} . my mother lives in spain . context:  "
        rows.append({"question": f"{persona}Q: hi , how are you ?", "answers": [f"fine , busy with {hobby} ."]})
        talk = f"R: hi , how are you ? Q: fine , busy with {hobby} . R: oh ? Q: it is fun"
        rows.append({"question": persona + talk, "answers": [f"i never tried {hobby} ."]})
    return rows


def folder_of(root: Path, **files: Sequence[Any]) -> DialogueFiles:
    (root / "convai2").mkdir()
    for name, rows in files.items():
        (root / "convai2" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = [{"id": str(n), "title": hobby, "text": f"a girl found {hobby} at school."} for n, hobby in enumerate(HOBBIES)]
    (root / "story.jsonl").write_text("".join(json.dumps(story) + "\n" for story in told))
    return DialogueFiles(root, DatasetFolder(str(root / "convai2")), TextFile(str(root / "story.jsonl")))


def prepared(files: DialogueFiles) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    source = {"kind": "jsonl", "marks": ["Q:", "R:"]}
    return check_dialogues(files, {}, data_params(source=source, root=str(files.root), max_question_bytes=200))


def divided(checked: pd.DataFrame, seed: int = 3) -> Splits:
    return split_personas(checked, DialogueSplitParams.model_validate({"seed": seed, "fractions": FRACTIONS}))


def test_train_and_valid_in_two_files_are_read_as_lapdog_has_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES[:9]), valid=lapdog_rows(HOBBIES[9:]))
    checked, stories, quarantine, report = prepared(files)
    assert len(quarantine) == 0
    talk = checked.loc[checked["row"] == 2, "context"].iloc[0].split("\n")
    assert talk == ["hi , how are you ?", "fine , busy with bread .", "oh ?", "it is fun"]
    assert report["splits_by_part"] == {"train.jsonl": "train+test", "valid.jsonl": "val"}
    with caplog.at_level(logging.WARNING):
        splits = divided(checked)
    assert "the subjects of the part train are drawn" in caplog.text
    assert "6 for train, 3 for test" in caplog.text
    params = retrieval_params(top_n=3, query="persona_and_last_turn")
    table = build_examples(index_stories(stories, params), checked, stories, splits, params).table
    told = table.assign(hobby=table["persona"].str.split().str[2]).groupby("split")["hobby"].agg(set)
    assert told["val"] == {*HOBBIES[9:]}
    assert told["train"] | told["test"] == {*HOBBIES[:9]}
    assert (len(told["train"]), len(told["test"])) == (6, 3)
    assert divided(checked, seed=4) != splits
    # The story of each hobby is found among three.
    assert all(str(HOBBIES.index(row.persona.split()[2])) in row.story_ids for row in table.itertuples())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train", "valid", "test"), {"train": "train", "valid": "val", "test": "test"}),
        (("test", "train"), {"train": "train+val", "test": "test"}),
        (("train",), {"train": "train+val+test"}),
    ],
)
def test_the_file_of_train_holds_the_splits_without_a_file(
    tmp_path: Path, names: tuple[str, ...], expected: dict[str, str]
) -> None:
    hobbies = dict(zip(names, (HOBBIES[:4], HOBBIES[4:8], HOBBIES[8:]), strict=False))
    files = folder_of(tmp_path, **{name: lapdog_rows(found) for name, found in hobbies.items()})
    found = {Path(part.path).stem: split for part, split in parts_by_split(files.examples)}
    assert found == expected
    splits = divided(prepared(files)[0])
    for name, split in expected.items():
        assert sum(len(splits[one]) for one in split.split("+")) == 2 * len(hobbies[name])


def test_a_persona_in_two_files_is_refused_in_both_with_their_names(tmp_path: Path) -> None:
    turned = [{"question": "persona: my mother lives in spain . i love bread . context: Q: yes", "answers": ["no"]}]
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES[:9]), valid=[*lapdog_rows(HOBBIES[9:]), *turned])
    checked, _, quarantine, report = prepared(files)
    names = [f"{tmp_path}/convai2/{name}.jsonl" for name in ("train", "valid")]
    assert quarantine[["file", "row"]].to_numpy().tolist() == [[names[0], 1], [names[0], 2], [names[1], 7]]
    assert quarantine["reason"].str.contains(r"must be in one split, got \['train\+test', 'val'\]; move all its rows").all()
    assert (len(checked), report["rows"], report["refused"]) == (22, 25, 3)
    strict = data_params(source={"kind": "jsonl", "marks": ["Q:", "R:"]}, root=str(tmp_path), on_bad_row="fail")
    with pytest.raises(ValueError, match=r"convai2/train.jsonl line 1 .*set dialogue.data.on_bad_row: quarantine"):
        check_dialogues(files, {}, strict)


def test_bad_lines_of_a_file_are_listed_with_it_before_those_of_the_stories(tmp_path: Path) -> None:
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES[:9]), valid=[[1], *lapdog_rows(HOBBIES[9:])])
    (tmp_path / "story.jsonl").write_text('{\n{"id": "1", "title": "", "text": "a girl ran."}\n')
    quarantine = prepared(files)[2]
    assert [Path(file).name for file in quarantine["file"]] == ["valid.jsonl", "story.jsonl"]


def test_the_same_row_in_two_files_gets_two_ids(tmp_path: Path) -> None:
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES[:9]), valid=lapdog_rows([*HOBBIES[9:], *HOBBIES[9:]]))
    assert prepared(files)[0]["example_id"].is_unique


def test_another_file_in_the_folder_and_a_folder_without_train_are_refused(tmp_path: Path) -> None:
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES), story=[])
    with pytest.raises(ValueError, match=r"convai2 must have a part train and others of .*, got \['story'\]; rename them"):
        prepared(files)
    (tmp_path / "other").mkdir()
    files = folder_of(tmp_path / "other", valid=lapdog_rows(HOBBIES))
    with pytest.raises(ValueError, match=r"must have a part train and others of .*, got \['valid'\]"):
        prepared(files)


def test_the_digest_of_a_folder_is_that_of_its_files_and_their_names(tmp_path: Path) -> None:
    files = folder_of(tmp_path, train=lapdog_rows(HOBBIES[:9]), valid=lapdog_rows(HOBBIES[9:]))
    before = files.examples.digest()
    assert prepared(files)[3]["sha256"]["convai2"] == before
    (tmp_path / "convai2" / "valid.jsonl").rename(tmp_path / "convai2" / "test.jsonl")
    assert files.examples.digest() != before


def test_prompts_are_read_from_such_a_folder_too(tmp_path: Path) -> None:
    rows = [{"prompt": f"{a}+1=", "answers": str(a + 1)} for a in range(12)]
    files = folder_of(tmp_path, train=rows[:9], dev=rows[9:])
    params = data_params(source={"kind": "prompts"}, root=str(tmp_path))
    checked = check_dialogues(DialogueFiles(tmp_path, files.examples, None), {}, params)[0]
    assert [checked["split"].tolist().count(split) for split in ("train+test", "val")] == [9, 3]


def test_a_folder_is_no_file_of_conversations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a file for this dialogue.data.source, got a folder; name a file in it"):
        DatasetFolder(str(tmp_path)).open()
