"""The models of a task's arms, as the last finished run has written them down."""

import json
from pathlib import Path

import pytest
import torch
from kedro.io.core import DatasetError

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError
from grpo_pipeline.core.storage.weights import ModelWeights, save_weights
from grpo_pipeline.datasets.trained_arms import TrainedArmsDataset
from grpo_pipeline.runs.artefact_records import Entry, Record, save_record


def write(root: Path, arm: str, version: str, value: float, kind: str = "model") -> str:
    folder = root / f"06_models/t/{arm}/{kind}/{version}/{kind}"
    save_weights(folder, ModelWeights({"w": torch.full((2,), value)}, {"value": value}))
    return content_digest(folder)


def dataset(root: Path) -> TrainedArmsDataset:
    return TrainedArmsDataset(filepath=str(root / "06_models/t"))


def test_the_model_that_was_written_down_counts_and_not_the_newest_name(tmp_path: Path) -> None:
    digests = {
        (arm, v): write(tmp_path, arm, v, i) for i, (arm, v) in enumerate([("a", "v1"), ("a", "v9"), ("b", "v1"), ("c", "v1")])
    }
    entries = {
        "t.a.model": Entry("first", "noon", digests["a", "v1"], "v1"),
        "t.b.model": Entry("first", "noon", "", "v1"),  # not finished
        "t.c.calibration": Entry("first", "noon", "d", "v1"),
        "t.model": Entry("first", "noon", "d", "v1"),
    }
    before = dataset(tmp_path).load()
    assert {arm: path.parent.name for arm, path in before.newest().items()} == {
        "a": "v9",
        "b": "v1",
        "c": "v1",
    }  # nobody wrote a record
    save_record(tmp_path / ".runs/t.json", Record(entries))
    found = dataset(tmp_path)
    assert json.loads(found.preview()) == {"a": "v1"}
    assert found.exists()
    arms = found.load()
    assert arms.load("a", parameter="p").config == {"value": 0}
    for arm in ("b", "c"):
        with pytest.raises(FileNotFoundError, match=rf"p must name an arm with a trained model .*got '{arm}' and it has \['a'\]"):
            arms.find(arm, parameter="p")
    save_record(tmp_path / ".runs/t.json", Record({"t.a.model": Entry("later", "noon", digests["a", "v9"], "v9")}))
    assert found.load() is arms  # all nodes of a run see one
    assert json.loads(dataset(tmp_path).preview()) == {"a": "v9"}
    with pytest.raises(DatasetError, match="must be written by the arms, got dict"):
        found.save({"x": 1})


def test_the_best_weights_are_a_model_of_their_own_and_of_the_same_run(tmp_path: Path) -> None:
    digest = {value: write(tmp_path, "a", f"v{value}", value, kind) for value, kind in ((1, "model"), (2, "best"), (3, "model"))}
    entries = {"t.a.model": Entry("first", "noon", digest[1], "v1"), "t.a.best": Entry("first", "noon", digest[2], "v2")}
    before = dataset(tmp_path).load()
    assert {name: path.parent.name for name, path in before.newest().items()} == {"a": "v3", "a.best": "v2"}
    save_record(tmp_path / ".runs/t.json", Record(entries))
    arms = dataset(tmp_path).load()
    assert [arms.load(name, parameter="p").config["value"] for name in ("a", "a.best")] == [1, 2]
    # A later run has kept the last weights alone: nobody takes those of before for its best ones.
    save_record(tmp_path / ".runs/t.json", Record(entries | {"t.a.model": Entry("later", "noon", digest[3], "v3")}))
    later = dataset(tmp_path).load()
    assert list(later.newest()) == ["a"]
    with pytest.raises(FileNotFoundError, match=r"got 'a.best' and it has \['a'\]"):
        later.find("a.best", parameter="p")


def test_a_model_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    digest = write(tmp_path, "a", "v1", 1.0)
    save_record(tmp_path / ".runs/t.json", Record({"t.a.model": Entry("first", "noon", digest, "v1")}))
    write(tmp_path, "a", "v1", 2.0)
    with pytest.raises(CorruptFolderError, match=f"must be the model that run first saved, with digest {digest}, got "):
        dataset(tmp_path).load().find("a", parameter="p")
