"""Generated data lie in their folder before the file says so; a lookup and a user's data write nothing."""

import json
from pathlib import Path

import pytest
from kedro.io import DataCatalog, DatasetError

from grpo_pipeline.datasets.raw_file import RawFileDataset
from grpo_pipeline.runs.stored_datasets import is_in_place, moved, place_of
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet
from grpo_pipeline.tasks.attention.pipelines.features import FeaturesDataset
from grpo_pipeline.tasks.attention.pipelines.image_folder import ImageFolderDataset


def generated(folder: Path):
    raw = {
        "type": "grpo_pipeline.datasets.raw_file.RawFileDataset",
        "filepath": str(folder / "raw"),
        "file": "a.txt",
        "task": "t",
    }
    entry = {"type": "grpo_pipeline.datasets.generated.GeneratedDataset", "filepath": str(folder / "told.json"), "folder": raw}
    return DataCatalog.from_config({"x": entry})["x"]


def test_content_goes_to_the_folder_and_the_rest_to_the_file(tmp_path: Path) -> None:
    dataset = generated(tmp_path)
    dataset.save(({"a.txt": b"one\n"}, {"rows": 1}))
    assert (tmp_path / "raw" / "a.txt").read_bytes() == b"one\n"
    assert (dataset.load(), json.loads((tmp_path / "told.json").read_text())) == ({"rows": 1}, {"rows": 1})
    dataset.save(({}, {"rows": 0}))  # of a user's data nothing is generated
    assert (tmp_path / "raw" / "a.txt").read_bytes() == b"one\n"
    assert dataset.load() == {"rows": 0}


def test_the_file_waits_for_the_end_of_the_run_and_the_folder_does_not(tmp_path: Path) -> None:
    dataset = generated(tmp_path)
    assert (place_of(dataset), is_in_place(dataset)) == (tmp_path / "told.json", False)
    waiting = moved(dataset, tmp_path / "later.json")
    waiting.save(({"a.txt": b"two\n"}, {"rows": 2}))
    assert ((tmp_path / "raw" / "a.txt").read_bytes(), waiting.load()) == (b"two\n", {"rows": 2})
    assert not (tmp_path / "told.json").exists()


def test_without_its_content_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file where the folder should be")
    with pytest.raises(DatasetError):
        generated(tmp_path).save(({"a.txt": b"one\n"}, {"rows": 1}))
    assert not (tmp_path / "told.json").exists()


def test_a_lookup_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    for dataset in (
        ImageFolderDataset(filepath=str(folder)),
        RawFileDataset(filepath=str(folder), file="a.txt", task="t"),
        FeaturesDataset(filepath=str(folder)),
    ):
        dataset.save(False)
        assert [*tmp_path.iterdir()] == []
    assert FeaturesDataset(filepath=str(folder)).load() == FeatureSet(key="", values=None)
