"""A folder of a user's own becomes an environment: what is guessed, what is asked for, and that the data stage reads it."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from rdkit import Chem

from grpo_pipeline.new_data import look, write_environment
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, read_manifest
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.dialogue.data.dataset_folder import DatasetFolder
from grpo_pipeline.tasks.dialogue.data.params import PromptSource
from grpo_pipeline.tasks.dialogue.data.prompt_rows import read_prompts
from grpo_pipeline.tasks.new_data import Found, Hints, UnclearDataError
from grpo_pipeline.tasks.text_lines import TextFile

BASE = Path(__file__).parents[2] / "conf" / "base"


def picture(path: Path, value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = np.full((20, 24), value, np.uint8)
    grey[2:9, 3:8] = 0  # of a mask the background, and an image must show something
    Image.fromarray(grey).save(path)


def table(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def data_of(found: Found) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load(found.parameters)[found.task]
    return section


def read(folder: Path, found: Found, home: Path) -> Any:
    """Check a folder of images by the guessed parameters, as the data stage does."""
    base = yaml.safe_load((BASE / "attention" / "parameters_data.yml").read_text())["attention"]["data"]
    params = DataParams.model_validate({**base, "root": str(folder), **data_of(found)["data"]})
    written = write_environment(found, folder, home / "conf", "mine")
    named = yaml.safe_load(written[0].read_text())
    manifest = folder / named["attention_manifest"]
    assert (home / named["attention_root"]).resolve() == folder.resolve()
    return check_manifest(ImageFolder(folder, read_manifest(manifest), manifest), {"cores": 0}, params)


def clinic(folder: Path) -> None:
    """Write what the manual of the attention data shows: images, glands, traces and their table."""
    rows: list[dict[str, object]] = []
    for n in range(8):
        for kind in ("bmode", "gland", "trace"):
            picture(folder / kind / f"{n:04}.png", 255 if kind == "gland" else 90 + n)
        picture(folder / "trace" / f"{n:04}.png", 255)
        label = ("benign", "adenocarcinoma")[n % 2]
        row = {"case": f"c{n}", "subject": f"S{n // 2}", "site": "north", "png": f"{n:04}.png", "diagnosis": label}
        rows.append(row | {"isup": n % 2, "age_years": 50 + n, "note": "seen"})
    table(folder / "cases.csv", rows)


def test_a_table_of_images_with_masks_in_folders_of_their_own(tmp_path: Path) -> None:
    clinic(tmp_path / "clinic")
    found = look(tmp_path / "clinic", Hints())
    data = data_of(found)["data"]
    assert data["columns"] == {
        "image": "png", "region_mask": "png", "bag_mask": "png", "lesion_mask": None, "label": "diagnosis", "involvement": None,
        "grade_group": "isup", "patient_id": "subject", "center": "site", "core_id": None, "split": None, "clinical": [],
    }  # fmt: skip
    assert data["folders"] == {"image": "bmode", "region_mask": "gland", "bag_mask": "trace", "lesion_mask": ""}
    assert data["label"] == {"positive": ["adenocarcinoma"], "negative": ["benign"]}
    assert "known before the diagnosis: age_years" in found.parameters
    checked = read(tmp_path / "clinic", found, tmp_path / "project")[0]
    assert checked["label"].tolist() == [0, 1] * 4
    assert checked["patient_id"].nunique() == 4


def test_a_folder_per_class_with_masks_beside_the_images(tmp_path: Path) -> None:
    for n in range(12):
        name, value = ("malignant", 1) if n % 3 else ("normal", 0)
        picture(tmp_path / "breast" / name / f"{name} ({n}).png", 90 + n)
        if value:
            picture(tmp_path / "breast" / name / f"{name} ({n})_mask.png", 255)
            picture(tmp_path / "breast" / name / f"{name} ({n})_mask_1.png", 255)
    found = look(tmp_path / "breast", Hints())
    rows = [*csv.DictReader(found.files["index.csv"].splitlines())]
    assert len(rows) == 12
    assert rows[0]["mask"] == "malignant/malignant (1)_mask.png;malignant/malignant (1)_mask_1.png"  # none of (10) and (11)
    assert {row["mask"] for row in rows if row["class"] == "normal"} == {""}
    assert any("every image counts as a patient of its own" in note for note in found.notes)
    checked = read(tmp_path / "breast", found, tmp_path / "project")[0]
    assert checked["label"].sum() == 8
    assert sorted(path.name for path in (tmp_path / "breast").iterdir()) == ["malignant", "normal"]  # nothing was written there


def test_folders_of_splits_above_those_of_classes_and_masks_in_a_folder_of_their_own(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for name in ("cyst", "tumour"):
            for n in range(2):
                picture(tmp_path / "scans" / split / name / f"{n}.png", 90 + n)
                picture(tmp_path / "scans" / split / name / "masks" / f"{n}.png", 255)
    found = look(tmp_path / "scans", Hints())
    rows = [*csv.DictReader(found.files["index.csv"].splitlines())]
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    assert [row["mask"] for row in rows if row["split"] == "val"] == [
        f"valid/{c}/masks/{n}.png" for c in ("cyst", "tumour") for n in range(2)
    ]
    assert data_of(found)["data"]["label"] == {"positive": ["tumour"], "negative": ["cyst"]}
    assert set(read(tmp_path / "scans", found, tmp_path / "project")[0]["split"]) == {"train", "val", "test"}


def test_lone_folders_may_stand_above_those_of_splits(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for label in ("NORMAL", "DISEASE"):
            picture(tmp_path / "set" / "archive" / "xray" / split / label / f"{split}_{label}.png")
    found = look(tmp_path / "set", Hints(positive=("DISEASE",)))
    checked, quarantine, *_ = read(tmp_path / "set", found, tmp_path)
    assert len(quarantine) == 0
    assert sorted(zip(checked["split"], checked["label"], strict=True)) == [
        (split, label) for split in ("test", "train", "val") for label in (0, 1)
    ]


@pytest.mark.parametrize(("other", "masks"), [("bus_2", ["masks/mask_1.png", ""]), ("us_1", ["", ""])])
def test_a_mask_may_share_the_end_of_a_name_with_one_image(tmp_path: Path, other: str, masks: list[str]) -> None:
    picture(tmp_path / "set" / "masks" / "mask_1.png")
    for name in ("bus_1", other):
        picture(tmp_path / "set" / "images" / f"{name}.png")
    table(tmp_path / "set" / "t.csv", [{"ID": n, "label": v} for n, v in (("bus_1", "benign"), (other, "malignant"))])
    index = look(tmp_path / "set", Hints()).files["index.csv"]
    assert [row.get("file_of_mask", "") for row in csv.DictReader(index.splitlines())] == masks


def test_images_and_masks_of_classes_apart_and_classes_that_sound_like_masks(tmp_path: Path) -> None:
    for name in ("lesion", "healthy"):
        for n in range(3):
            picture(tmp_path / "set" / "images" / name / f"{name}_{n}.png", 90 + n)
            picture(tmp_path / "set" / "masks" / name / f"{name}_{n}.png", 255)
    rows = [*csv.DictReader(look(tmp_path / "set", Hints()).files["index.csv"].splitlines())]
    assert [(row["image"], row["class"], row["mask"]) for row in rows if row["class"] == "lesion"] == [
        (f"images/lesion/lesion_{n}.png", "lesion", f"masks/lesion/lesion_{n}.png") for n in range(3)
    ]


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("{folder}/images/{n:03}.png", "."),
        ("../images/{n:03}.png", "tables"),
        ("images\\{n:03}.png", "."),
        ("{n:03}", "."),
        ("images/{n:03}", "."),
    ],
    ids=["whole path", "seen from the table", "backslashes", "name alone", "no ending"],
)
def test_a_table_that_names_files_in_another_way_is_listed_anew(tmp_path: Path, cell: str, place: str) -> None:
    folder = tmp_path / "set"
    (folder / place).mkdir(parents=True)
    rows: list[dict[str, object]] = []
    for n in range(6):
        picture(folder / "images" / f"{n:03}.png")
        picture(folder / "masks" / f"{n:03}.png")
        rows.append(
            {
                "number": f"{n // 2:03}",
                "traced": folder / "masks" / f"{n:03}.png",
                "which": cell.format(folder=folder, n=n),
                "dx": ("nevus", "carcinoma")[n % 2],
                "lesion_id": f"L{n // 2}",
            }
        )
    table(folder / place / "t.csv", rows)
    found = look(folder, Hints(table=f"{place}/t.csv" if place != "." else ""))
    columns = data_of(found)["data"]["columns"]
    assert (columns["image"], columns["lesion_mask"], columns["label"]) == ("file_of_image", "file_of_mask", "dx")
    checked, quarantine, *_ = read(folder, found, tmp_path)
    assert len(quarantine) == 0
    assert [Path(path).as_posix() for path in checked["image"]] == [f"images/{n:03}.png" for n in range(6)]
    assert [Path(path).as_posix() for path in checked["lesion_mask"]] == [f"masks/{n:03}.png" for n in range(6)]
    assert checked["patient_id"].tolist() == ["L0", "L0", "L1", "L1", "L2", "L2"]


def test_several_tasks_that_ask_are_told_apart(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    table(tmp_path / "t.csv", [{"image": "other.png", "label": "nevus"}])
    with pytest.raises(UnclearDataError) as asked:
        look(tmp_path, Hints())
    begin, *lines = str(asked.value).splitlines()
    assert begin.startswith("several tasks might read")
    assert "--task" in begin
    assert [line.partition(": ")[0] for line in lines] == ["attention", "dialogue"]
    with pytest.raises(UnclearDataError, match="^t.csv must have a column with files of images"):
        look(tmp_path, Hints(), task="attention")
    table(tmp_path / "t.csv", [{"image": "1", "label": "nevus"}])  # what names a file is no text
    with pytest.raises(UnclearDataError, match="^the label must have a value that means positive"):
        look(tmp_path, Hints())


def test_bytes_that_are_no_text_are_said_once(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    (tmp_path / "t.csv").write_bytes("image,label\n1.png,bösartig\n".encode("latin-1"))
    with pytest.raises(
        UnclearDataError, match=r"^\S+/t.csv must be UTF-8 text, got the bytes b'b\\xf6sartig'; save it again as UTF-8$"
    ):
        look(tmp_path, Hints())


def test_a_name_that_several_images_have_names_none(tmp_path: Path) -> None:
    for n, home in enumerate(("left", "left", "right")):
        picture(tmp_path / home / f"{n % 2}.png")
    table(tmp_path / "t.csv", [{"name": str(n), "label": "benign"} for n in range(2)])
    with pytest.raises(UnclearDataError, match="must have a column with files of images below the folder, got name, label, and"):
        look(tmp_path, Hints())


def test_a_table_of_images_that_lie_elsewhere_is_refused_with_what_to_give(tmp_path: Path) -> None:
    table(tmp_path / "t.csv", [{"image": "/elsewhere/1.png", "label": "benign"}])
    with pytest.raises(
        UnclearDataError, match=r"t.csv must name images below .*, got /elsewhere/1.png, and there is no image; give"
    ):
        look(tmp_path, Hints())


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_a_table_for_each_split_is_one(tmp_path: Path, suffix: str, mark: str) -> None:
    folder = tmp_path / "kaggle"
    for n in range(8):
        picture(folder / "images" / f"{n:03}.png", 90 + n)
    for name, rows in (("train", range(4)), ("labels_valid", (4, 5)), ("test", (6, 7))):
        text = "\n".join([mark.join(("image", "label")), *(mark.join((f"{n:03}.png", f"{n % 2}")) for n in rows)])
        (folder / f"{name}{suffix}").write_text(text)
    found = look(folder, Hints())
    assert "holds the tables of the splits, with a column split" in found.notes[0]
    checked = read(folder, found, tmp_path)[0]
    given = dict(zip(checked["core_id"], checked["split"], strict=True))
    assert given == {f"{n:03}": ("train", "train", "val", "test")[n // 2] for n in range(8)}
    assert checked.set_index("core_id")["label"].to_dict() == {f"{n:03}": n % 2 for n in range(8)}
    (folder / f"train_2{suffix}").write_text(f"image{mark}label\n000.png{mark}1\n")  # two tables of one split
    with pytest.raises(
        UnclearDataError, match=rf"must have one CSV file, got labels_valid{suffix}, test{suffix}, train{suffix}, "
    ):
        look(folder, Hints())


def test_a_workbook_is_to_be_saved_as_text_and_a_column_per_class_to_be_chosen(tmp_path: Path) -> None:
    for n in range(9):
        picture(tmp_path / f"{n}.png", 90 + n)
    (tmp_path / "labels.xlsx").write_bytes(b"PK")
    with pytest.raises(
        UnclearDataError, match=r"labels are needed to train: save the sheet of labels.xlsx as CSV, or put the images"
    ):
        look(tmp_path, Hints())
    for n in range(4):
        picture(tmp_path / "classes" / ("benign", "malignant")[n % 2] / f"{n}.png", 90 + n)
    (tmp_path / "classes" / "notes.xlsx").write_bytes(b"PK")  # nobody needs it
    assert data_of(look(tmp_path / "classes", Hints()))["data"]["label"]["positive"] == ["malignant"]
    shutil.rmtree(tmp_path / "classes")
    rows = [{"image": f"{n}", "MEL": f"{float(n % 3 == 0)}", "NV": f"{float(n % 3 > 0)}"} for n in range(9)]
    table(tmp_path / "t.csv", rows)
    with pytest.raises(UnclearDataError, match=r"MEL, NV have 1 where a row is of that class; name .*--column label=MEL"):
        look(tmp_path, Hints())
    data = data_of(look(tmp_path, Hints(columns={"label": "MEL"})))["data"]
    assert data["label"] == {"positive": ["1.0"], "negative": ["0.0"]}


@pytest.mark.parametrize("home", ["breast", "tumor_images"])
def test_a_lone_folder_holds_the_images_whatever_it_is_called(tmp_path: Path, home: str) -> None:
    for n in range(4):
        picture(tmp_path / home / f"{n}.png", 90 + n)
    table(tmp_path / "t.csv", [{"file": f"{n}.png", "label": n % 2} for n in range(4)])
    data = data_of(look(tmp_path, Hints()))["data"]
    assert (data["columns"]["image"], data["folders"]["image"], data["columns"]["lesion_mask"]) == ("file", home, None)


@pytest.mark.parametrize(
    ("column", "cell", "other"), [("mask", "m/{}.png", "a/x.png"), ("file", "{}.png", "a/x.png"), ("mask", "m/{}.png", "m/x.png")]
)
def test_masks_are_no_images_where_others_are(tmp_path: Path, column: str, cell: str, other: str) -> None:
    home = "m" if "/" in cell else "masks"
    for n in range(4):
        picture(tmp_path / home / f"{n}.png", 90 + n)
    picture(tmp_path / other, 90)
    table(tmp_path / "t.csv", [{column: cell.format(n), "label": n % 2} for n in range(4)])
    with pytest.raises(
        UnclearDataError, match=rf"got '{column}', which seems to name masks, and no column that names {other}; add"
    ):
        look(tmp_path, Hints())
    data = data_of(look(tmp_path, Hints(columns={"image": column})))["data"]
    assert data["columns"]["image"] == column


def test_hints_decide_what_no_name_tells(tmp_path: Path) -> None:
    for n in range(6):
        picture(tmp_path / "d" / f"{n}.png", 90 + n)
    rows = [{"a": f"{n}.png", "b": f"g{n % 3}", "c": n % 2, "who": n} for n in range(6)]
    table(tmp_path / "d" / "t.csv", rows)
    with pytest.raises(
        UnclearDataError, match=r"t.csv must have a column with the label, got a, b, c, who, of which b, c may be one"
    ):
        look(tmp_path / "d", Hints())
    found = look(tmp_path / "d", Hints(columns={"label": "b", "patient_id": "who"}, positive=("g2", "g0")))
    data = data_of(found)["data"]
    assert (data["label"], data["columns"]["patient_id"]) == ({"positive": ["g2", "g0"], "negative": ["g1"]}, "who")
    for hints, message in (
        (Hints(columns={"label": "b"}), "must have a value that means positive and one that does not, got g0, g1, g2; name"),
        (Hints(columns={"label": "b"}, positive=("g9",)), "--positive must be values of the label, g0, g1, g2, got g9"),
        (Hints(columns={"label": "x"}), "--column label must name a column, got 'x'; there are a, b, c, who"),
        (Hints(columns={"label": "c", "lable": "c"}), "--column must be of image, .*, got lable; correct the key"),
    ):
        with pytest.raises(UnclearDataError, match=message):
            look(tmp_path / "d", hints)


@pytest.mark.parametrize(
    ("value", "is_positive"), [("malignant", True), ("Prostate cancer", True), ("non-cancer", False), ("no tumor", False)]
)
def test_a_word_of_illness_is_positive_unless_it_is_denied(tmp_path: Path, value: str, is_positive: bool) -> None:
    for n in range(4):
        picture(tmp_path / f"{n}.png", 90 + n)
    table(
        tmp_path / "t.csv",
        [{"file": f"{n}.png", "label": (value, "malignant" if not is_positive else "fine")[n % 2]} for n in range(4)],
    )
    assert data_of(look(tmp_path, Hints()))["data"]["label"]["positive"] == [value if is_positive else "malignant"]


def test_prompts_with_their_lengths_and_a_reward_for_numbers(tmp_path: Path) -> None:
    rows = [{"question": "é" * n + "?", "answer": f"so #### {n}", "topic": "a", "extra": 1} for n in range(1, 9)]
    (tmp_path / "gsm.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"question": ""}])))
    found = look(tmp_path, Hints())
    section = data_of(found)
    assert section["data"]["source"] == {
        "kind": "prompts",
        "prompt": "question",
        "answers": "answer",
        "group": None,
        "split": None,
    }
    PromptSource.model_validate(section["data"]["source"])
    assert section["data"]["max_question_bytes"] == 32  # the longest has 17, which the parameter does not take
    assert section["replies"]["max_tokens"] == len("so #### 1") + 1
    assert section["reward"] == {"f1": None, "rouge_l": None, "bleu": None, "number": {"weight": 1.0}}
    assert found.notes[0].startswith("8 of 9 rows of gsm.jsonl can be read")
    assert "row 9" in found.notes[1]
    assert found.notes[2] == (
        "column topic has too few values to be shared out, 1: rows are split one by one; --column group=topic keeps those with "
        "the same value in one split"
    )
    words = [row | {"answer": "blue"} for row in rows]
    (tmp_path / "gsm.jsonl").write_text("\n".join(map(json.dumps, words)))
    assert "reward" not in data_of(look(tmp_path, Hints()))


def test_a_group_has_many_values_or_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "answer": "a", "source": f"s{n % 10}"} for n in range(12)]

    def group(n_groups: int, **named: str) -> str | None:
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, [r for r in rows if int(r["source"][1:]) < n_groups])))
        found: str | None = data_of(look(tmp_path, Hints(columns=named)))["data"]["source"]["group"]
        return found

    assert (group(10), group(9), group(9, group="source")) == ("source", None, "source")


def test_a_file_for_each_split(tmp_path: Path) -> None:
    for name, n in (("train", 3), ("valid", 2)):
        rows = [json.dumps({"prompt": f"{name} {k}", "answer": "a"}) for k in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    found = look(tmp_path, Hints())
    assert found.globals == {"dialogue_examples": "."}
    assert found.notes[0] == "5 of 5 rows of the folder can be read; prompt: prompt, answers: answer"
    assert "3 of 3 rows" in look(tmp_path, Hints(table="train.jsonl")).notes[0]
    (tmp_path / "other.jsonl").write_text(json.dumps({"prompt": "q", "answer": "a"}))
    with pytest.raises(
        UnclearDataError, match=r"must have one file of prompts, got other.jsonl, train.jsonl, valid.jsonl; name it"
    ):
        look(tmp_path, Hints())


TEXTS = pd.DataFrame([{"question": f"{n}?", "answer": f"{n}"} for n in range(9)])
WRITERS = {
    ".csv": lambda rows, path: rows.to_csv(path, index=False),
    ".tsv": lambda rows, path: rows.to_csv(path, index=False, sep="\t"),
    ".json": lambda rows, path: rows.to_json(path, orient="records", indent=1),
    ".jsonl": lambda rows, path: rows.to_json(path, orient="records", lines=True),
    ".parquet": lambda rows, path: rows.to_parquet(path, index=False),
}


@pytest.mark.parametrize("ending", WRITERS)
def test_texts_in_any_form_one_file_or_one_for_each_split(tmp_path: Path, ending: str) -> None:
    """The files of splits lie in ``data`` and are in pieces, as on the Hugging Face hub."""
    alone, parts = tmp_path / "alone", tmp_path / "parts"
    for folder in (alone, parts / "data"):
        folder.mkdir(parents=True)
    WRITERS[ending](TEXTS, alone / f"mine{ending}")
    (parts / "README.md").write_text("# About\n")
    if ending != ".jsonl":  # of JSON lines every file is one of a split
        (parts / "stories.jsonl").write_text('{"id": 1}\n')
    for name, rows in (
        ("train-00000-of-00002", [0, 1, 2]),
        ("train-00001-of-00002", [3, 4]),
        ("test-00000-of-00001", [5, 6, 7, 8]),
    ):
        WRITERS[ending](TEXTS.iloc[rows], parts / "data" / f"{name}{ending}")
    one, many = look(alone, Hints()), look(parts, Hints())
    assert (one.globals, many.globals) == ({"dialogue_examples": f"mine{ending}"}, {"dialogue_examples": "."})
    for found in (one, many):
        assert found.notes[0].startswith("9 of 9 rows of ")
        assert found.notes[0].endswith(" can be read; prompt: question, answers: answer")
    source = PromptSource(kind="prompts", prompt="question", answers="answer")
    drafts = read_prompts(DatasetFolder(str(parts)), source).drafts
    assert [(draft.turns, draft.answers) for draft in drafts if draft.split == "train+val"] == [
        ((f"{n}?",), (f"{n}",)) for n in range(5)
    ]
    assert sorted(draft.answers for draft in drafts if draft.split == "test") == [(f"{n}",) for n in range(5, 9)]
    before = DatasetFolder(str(parts)).digest()
    WRITERS[ending](TEXTS.iloc[[8, 7, 6, 5]], parts / "data" / f"test-00000-of-00001{ending}")
    assert DatasetFolder(str(parts)).digest() != before


def test_a_broken_list_packed_files_and_a_second_column_of_a_prompt_are_said(tmp_path: Path) -> None:
    rows = [{"instruction": f"add 1 to {n}", "input": "" if n else "as a word", "output": "1"} for n in range(4)]
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    assert "the column input is no part of the prompt: join it to instruction" in look(tmp_path, Hints()).notes[1]
    (tmp_path / "mine.json").write_text(json.dumps([row | {"input": ""} for row in rows]))
    assert "input" not in "".join(look(tmp_path, Hints()).notes)
    (tmp_path / "mine.json").write_text(json.dumps(rows)[:-5])
    with pytest.raises(
        ValueError, match=r"mine.json must be a JSON list, got Expecting value.*; write it again, or an object on"
    ):
        read_prompts(TextFile(str(tmp_path / "mine.json")), PromptSource(kind="prompts", prompt="instruction"))
    (tmp_path / "mine.json").rename(tmp_path / "mine.json.gz")
    with pytest.raises(UnclearDataError, match=r"got none of them; unpack mine.json.gz$"):
        look(tmp_path, Hints())


def test_messages_that_end_with_an_answer(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps({"messages": talk})] * 3))
    found = look(tmp_path, Hints())
    source = data_of(found)["data"]["source"]
    assert (source["prompt"], source["answers"]) == ("messages", "messages")
    assert found.notes == ("3 of 3 rows of t.jsonl can be read; prompt: messages, answers: the last message of each",)
    for n_answered, answers in ((9, "messages"), (8, None)):
        rows = [json.dumps({"messages": talk})] * n_answered + [json.dumps({"messages": talk[:1]})]
        (tmp_path / "t.jsonl").write_text("\n".join(rows))
        assert data_of(look(tmp_path, Hints()))["data"]["source"]["answers"] == answers


def test_conversations_of_two_people_with_their_personas(tmp_path: Path) -> None:
    talk = "\n".join(f"{('Ann', 'Bo')[n % 2]}: line {n}: and more" for n in range(6))
    rows = [{"ann's persona": f"i am {n} .", "bo's persona": f"i have {n} .", "talk": talk, "mood": "fine"} for n in range(8)]
    table(tmp_path / "talks.csv", rows)
    found = look(tmp_path, Hints())
    section = yaml.safe_load(found.parameters)["dialogue"]
    assert section["data"]["source"] == {
        "kind": "conversations", "stories_from": "personas", "conversation": "talk",
        "personas": ["ann's persona", "bo's persona"],
        "speakers": ["Ann", "Bo"], "replies": "both", "first_turn": 1, "every": 3, "context_turns": 3, "partners": "apart",
    }  # fmt: skip
    assert found.notes == ("8 conversations of talks.csv give 16 examples; conversation: talk, speakers: Ann and Bo",)
    told = Hints(columns={"prompt": "mood"})
    assert yaml.safe_load(look(tmp_path, told).parameters)["dialogue"]["data"]["source"]["prompt"] == "mood"


def test_prompts_whose_column_nobody_would_guess_are_asked_for(tmp_path: Path) -> None:
    table(tmp_path / "t.csv", [{"q": "1+1=", "a": "2"}])
    with pytest.raises(UnclearDataError, match=r"t.csv must have a column with the prompt, got q, a; name it: --column prompt="):
        look(tmp_path, Hints())
    source = data_of(look(tmp_path, Hints(columns={"prompt": "q", "answers": "a"})))["data"]["source"]
    assert (source["prompt"], source["answers"]) == ("q", "a")


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("all.smi", "CCO ethanol\nc1ccccc1\n", {"kind": "smiles"}),
        ("zinc.txt", "CCO\nCCN\n", {"kind": "smiles"}),
        ("t.csv", "ID,SMILES\n1,CCO\n", {"kind": "csv", "smiles": "SMILES", "name": "ID"}),
        ("t.sdf", "x\n$$$$\n", {"kind": "sdf"}),
    ],
)
def test_molecules_in_each_form(tmp_path: Path, name: str, text: str, source: dict[str, str]) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "README.txt").write_text("These are molecules of a plant.\n")
    found = look(tmp_path, Hints())
    assert (found.task, data_of(found)["data"]["source"], found.globals) == ("molecules", source, {"molecules_file": name})


@pytest.mark.parametrize("suffix", ["smi", "csv", "sdf"])
@pytest.mark.parametrize(("atoms", "is_large"), [(12, False), (13, True)])
def test_larger_molecules_get_smaller_batches(tmp_path: Path, suffix: str, atoms: int, is_large: bool) -> None:
    smiles = [*["CO"] * 5, "C" * atoms]
    texts = {"smi": "\n".join([*smiles, "no"]), "csv": "smiles\n" + "\n".join(smiles)}
    blocks = (Chem.MolToMolBlock(Chem.MolFromSmiles(one)) for one in smiles)
    texts["sdf"] = "".join(f"{block}$$$$\n" for block in blocks)
    (tmp_path / f"all.{suffix}").write_text(texts[suffix])
    found = look(tmp_path, Hints())
    section = yaml.safe_load(found.parameters)["molecules"]
    assert section.get("trajectory") == ({"steps_per_chunk": 5} if is_large else None)
    assert section.get("eager", {}).get("training") == section.get("training")
    assert any(f"up to {atoms} atoms" in note for note in found.notes) is is_large


def test_a_file_that_is_named_is_read_whatever_lies_beside_it(tmp_path: Path) -> None:
    for place in range(2):
        picture(tmp_path / "scans" / "tumour" / f"{place}.png")
        picture(tmp_path / "scans" / "healthy" / f"{place}.png")
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answers": "2"}\n')
    (tmp_path / "all.smi").write_text("CCO\n")
    assert look(tmp_path, Hints(table="sums.jsonl")).task == "dialogue"
    assert look(tmp_path, Hints(table="all.smi")).task == "molecules"
    assert look(tmp_path / "scans", Hints()).task == "attention"


def test_what_nobody_can_read_or_several_tasks_can_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnclearDataError, match=r"the data must be a folder, got .*nowhere; correct the path"):
        look(tmp_path / "nowhere", Hints())
    with pytest.raises(UnclearDataError, match=r"must hold images with a CSV file or a folder per class .*; a file of prompts"):
        look(tmp_path, Hints())
    with pytest.raises(UnclearDataError, match="--task must be one of attention, dialogue, molecules, got 'atention'"):
        look(tmp_path, Hints(), task="atention")
    picture(tmp_path / "0.png")
    with pytest.raises(UnclearDataError, match=r"a folder per class, got 1 images and neither; labels are needed to train"):
        look(tmp_path, Hints())
    (tmp_path / "m.smi").write_text("CCO\n")
    table(tmp_path / "t.csv", [{"file": "0.png", "label": 1}, {"file": "0.png", "label": 0}])
    with pytest.raises(
        UnclearDataError, match=r"must be the data of one task, got attention, molecules; name it: --task attention"
    ):
        look(tmp_path, Hints())
    assert look(tmp_path, Hints(), task="molecules").task == "molecules"
    table(tmp_path / "u.csv", [{"file": "0.png", "label": 1}])
    with pytest.raises(UnclearDataError, match=r"must have one CSV file, got t.csv, u.csv; name the one with a row per example"):
        look(tmp_path, Hints(), task="attention")
    assert look(tmp_path, Hints(table="t.csv"), task="attention").globals == {"attention_manifest": "t.csv"}


def test_an_environment_is_not_overwritten_and_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "m.smi").write_text("CCO\n")
    found = look(tmp_path, Hints())
    conf = tmp_path / "project" / "conf"
    written = write_environment(found, tmp_path, conf, "mine")
    assert yaml.safe_load(written[0].read_text()) == {
        "molecules_folder": "molecules_mine",
        "molecules_root": "..",
        "molecules_file": "m.smi",
    }
    with pytest.raises(UnclearDataError, match=r"mine must not exist yet, got a folder; take another --name"):
        write_environment(found, tmp_path, conf, "mine")
    with pytest.raises(UnclearDataError, match=r"the name must be lower-case letters, digits and _, got 'my data'; name it"):
        write_environment(found, tmp_path, conf, "my data")
