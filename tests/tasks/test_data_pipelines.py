"""The data of each task under Kedro's own loader, validator, catalogue and runner, with the committed configuration."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.io import DataCatalog, DatasetError
from PIL import Image

from grpo_pipeline.tasks.molecules.graphs.decoding import decode

Run = Callable[..., DataCatalog]


def test_generated_data_from_nothing_to_model_input(run_data: Run, data_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From whatever folder: images as they are in their files, replies with their stories, all small molecules."""
    monkeypatch.chdir(os.sep)
    catalog = run_data("attention", "smoke")
    examples, raw = catalog.load("attention.examples"), catalog.load("attention.raw")
    assert examples.images.shape == (42, 64, 64)
    assert catalog.load("attention.generated")["cores"] == 42
    for i in (0, 20, 41):
        np.testing.assert_array_equal(examples.images[i], raw.read_image(examples.table.loc[i, "image"]))
        np.testing.assert_array_equal(examples.bag[i], raw.read_mask(examples.table.loc[i, "bag_mask"]))
    assert not list(data_project.rglob("*.partial*"))
    of_splits = {"attention": (examples.table, catalog.load("attention.splits"), "core_id")}
    catalog = run_data("dialogue", "smoke")
    examples, report = catalog.load("dialogue.examples"), catalog.load("dialogue.data_report")
    table = examples.table
    assert (len(table), len(examples.stories), report["refused"]) == (80, 25, 0)
    assert (table.groupby("subject_id")["split"].nunique() == 1).all()
    assert catalog.load("dialogue.retrieval_report")["by_split"]["all"]["recall_at_1"] == 1.0
    assert (report["shortened"]["questions"], report["bytes"]["question"]["max"] <= 160) == (0, True)
    assert {story_id for ids in table["story_ids"] for story_id in ids} <= set(examples.stories["story_id"])
    of_splits["dialogue"] = table, catalog.load("dialogue.splits"), "example_id"
    catalog = run_data("molecules", "smoke")
    examples, report = catalog.load("molecules.examples"), catalog.load("molecules.data_report")
    # All 8 of two and 23 of three atoms, then 40 of each size.
    assert (report["molecules"], report["refused"], report["duplicates"], report["lost_stereo"]) == (151, 0, 0, 0)
    decoded = decode(examples.graphs(range(151)), examples.vocabulary)
    assert [molecule.smiles for molecule in decoded] == list(examples.table["smiles"])
    assert examples.vocabulary.max_atoms == 6
    of_splits["molecules"] = examples.table, catalog.load("molecules.splits"), "smiles"
    for table, splits, name in of_splits.values():
        given = {split: sorted(part[name]) for split, part in table.groupby("split")}
        assert given == {split: sorted(names) for split, names in splits.items() if names}
        assert set(given) >= {"train", "val", "test"}


def write_own_images(root: Path, *, groups: int = 18) -> None:
    """Images as BUSI has them: bare file names, masks of the same name, a near-duplicate group, some empty masks."""
    rng, rows = np.random.default_rng(0), []
    for group in range(groups):
        kind = ("benign", "malignant", "normal")[group % 3]
        for copy in range(2):
            name = f"{kind}_{group:03d}_{copy}.png"
            mask = np.zeros((40, 60), np.uint8)
            mask[10:20, 20:40] = 255 * (kind != "normal")
            for folder, array in (("images", rng.integers(0, 256, (40, 60), dtype=np.uint8)), ("masks", mask)):
                (root / folder).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / folder / name)
            rows.append({"file": name, "class": kind, "similarity_group": group})
    pd.DataFrame(rows).to_csv(root / "index.csv", index=False)


@pytest.mark.parametrize("env", ["busi", "busi_outlined"])
def test_own_images_by_configuration_only(run_data: Run, data_project: Path, tmp_path: Path, monkeypatch, env: str) -> None:
    """``--env busi --params attention.data.root=<folder>``: relative to the project, wherever the command is started."""
    own = tmp_path / "own"
    write_own_images(own)
    monkeypatch.chdir(os.sep)
    catalog = run_data("attention", env, {"data": {"root": str(own) if env == "busi" else "../own"}})
    examples = catalog.load("attention.examples")
    assert (len(examples.table), examples.table["label"].sum()) == (36, 12)
    assert examples.table.groupby("patient_id")["split"].nunique().max() == 1
    report, is_normal = catalog.load("attention.data_report"), examples.table["core_id"].str.startswith("normal").to_numpy()
    assert (report["bags_replaced_by_region"], report["bags_that_are_the_lesion_outline"]) == (0, 0)
    assert examples.lesion[~is_normal].any((1, 2)).all()
    np.testing.assert_array_equal(examples.bag, examples.region)  # outlines are shown by mask_share alone, never as bags
    assert sorted(path.name for path in own.iterdir()) == ["images", "index.csv", "masks"]
    assert not (data_project / f"data/01_raw/attention_{env}/phantom").exists()
    if env != "busi":  # what follows differs in nothing
        return
    (own / "images/benign_000_0.png").write_bytes(b"no image")
    settings = data_project / f"conf/{env}/globals.yml"
    settings.write_text(settings.read_text().replace("../shared/data/busi", "../own"))
    catalog = run_data("attention", env, {"data": {"on_bad_row": "quarantine"}})
    reason = (
        "'images/benign_000_0.png' must be a PNG, JPEG, BMP, TIFF, GIF or NPY image, or by its ending a NIfTI (.nii, .nii.gz), "
        "DICOM (.dcm), MetaImage (.mha, .mhd) or HDF5 (.h5, .hdf5) file, got a file of another kind; convert it"
    )
    refused = {"row": "2", "core_id": "benign_000_0", "file": "images/benign_000_0.png", "reason": reason}
    assert catalog.load("attention.quarantine").to_dict("records") == [refused]
    assert len(catalog.load("attention.examples").table) == 35


def test_rows_of_ones_own(run_data: Run, data_project: Path, tmp_path: Path) -> None:
    persona = "persona: i am {0}. context: hi".format
    rows = [{"question": persona(name), "answers": [f"i am {name}"]} for name in ("ann", "bob", "cleo", "dan")]
    stories = [{"id": name, "title": "", "text": f"{name} was here"} for name in ("ann", "bob", "eve")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"answers": ["?"]}])))
    (tmp_path / "tales.jsonl").write_text("\n".join(map(json.dumps, stories)))
    molecules = "a,CCO\nb,OCC\nc,C[N+](C)(C)C\nd,c1cc[nH]c1\ne,[Na+].[Cl-]\nf,CC(=O)[O-]\n"
    (tmp_path / "mine.csv").write_text(f"id,structure\n{molecules}")
    with (data_project / "conf/base/globals.yml").open("a") as file:
        file.write("dialogue_examples: rows.jsonl\ndialogue_stories: tales.jsonl\nmolecules_file: mine.csv\n")
    data = {"root": str(tmp_path), "source": {"kind": "jsonl"}, "on_bad_row": "quarantine"}
    catalog = run_data("dialogue", "smoke", {"data": data, "retrieval": {"top_n": 1}})
    table, quarantine = catalog.load("dialogue.examples").table.set_index("persona"), catalog.load("dialogue.quarantine")
    assert table["story_ids"]["i am bob."] == ["bob"]
    assert table["split"].nunique() == 3
    assert (quarantine["row"].tolist(), quarantine["file"].tolist()) == (["5"], [str(tmp_path / "rows.jsonl")])
    data |= {"source": {"kind": "csv", "smiles": "structure", "name": "id"}}
    fractions = {"train": 0.5, "val": 0.25, "test": 0.25}
    catalog = run_data("molecules", "smoke", {"data": data, "split": {"fractions": fractions}})
    quarantine = catalog.load("molecules.quarantine")
    assert quarantine[["row", "name", "kind"]].to_numpy().tolist() == [["3", "b", "duplicate"], ["6", "e", "refused"]]
    assert catalog.load("molecules.examples").table["name"].tolist() == ["a", "c", "d", "f"]
    assert catalog.load("molecules.vocabulary")["charges"] == [0, -1, 1]
    assert not [path for path in (data_project / "data").rglob("*") if path.name in ("personas", "enumerated")]


@pytest.mark.parametrize(("task", "source"), [("dialogue", "jsonl"), ("molecules", "smiles")])
def test_a_folder_that_is_not_there_is_named(run_data: Run, task: str, source: str) -> None:
    with pytest.raises(DatasetError, match=f"must be an existing folder, got nothing at .*nowhere; set {task}_root"):
        run_data(task, "smoke", {"data": {"root": "nowhere", "source": {"kind": source}}})


def test_synthetic_persona_chat(run_data: Run, data_project: Path, shared_data: Callable[[str], Path]) -> None:
    """No speaker is on two sides, and no story of a reply is that of one of its two speakers."""
    root = data_project.parent / "shared" / "data"
    root.mkdir(parents=True)
    (root / "persona_chat").symlink_to(shared_data("persona_chat"))
    catalog = run_data("dialogue", "persona_chat", {"data": {"source": {"every": 5}}})
    report, examples, splits = (catalog.load(f"dialogue.{name}") for name in ("data_report", "examples", "splits"))
    table = examples.table
    # Three conversations write their speakers' names in another way.
    assert (report["rows"], len(catalog.load("dialogue.quarantine")), report["refused"]) == (1000, 3, 3)
    assert len(table) + len(splits["left_out"]) == report["examples"]
    involved = {name: {*part["subject_id"], *part["partner_id"]} for name, part in table.groupby("split")}
    assert sum(map(len, involved.values())) == len(set().union(*involved.values()))
    owner = dict(zip(examples.stories["story_id"], examples.stories["persona_id"], strict=True))
    rows = zip(table["story_ids"], table["subject_id"], table["partner_id"], strict=True)
    assert not [ids for ids, own, other in rows if {own, other} & {owner[story] for story in ids}]
    talks = table.assign(talk=table["example_id"].str.rsplit("-", n=1).str[0]).groupby("talk")["split"].nunique()
    assert (talks == 1).all()
    assert table["question"].str.encode("utf-8").str.len().max() <= 384
