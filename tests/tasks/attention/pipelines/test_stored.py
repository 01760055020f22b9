"""Features and folders of images appear complete or not at all, and come back as they were."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.io import DatasetError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk
from grpo_pipeline.tasks.attention.frozen_features import FeatureChunk, FeatureSet
from grpo_pipeline.tasks.attention.pipelines.features import FeaturesDataset
from grpo_pipeline.tasks.attention.pipelines.image_folder import ImageFolderDataset

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


def chunks(values: np.ndarray, size: int, key: str = "abc") -> list[FeatureChunk]:
    return [FeatureChunk(key, at, len(values), values[at : at + size]) for at in range(0, len(values), size)]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_chunks_make_the_file_that_the_library_reads(tmp_path: Path, size: int):
    path = tmp_path / "new" / "features.safetensors"
    values = np.random.default_rng(0).normal(size=(5, 3, 2, 2)).astype(np.float32)
    dataset = FeaturesDataset(str(path))
    assert dataset.load() == FeatureSet(key="", values=None)
    for number, chunk in enumerate(chunks(values, size)):
        assert not path.exists(), number
        dataset.save(chunk)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # the values are aligned
    library = load_file(path)
    np.testing.assert_array_equal(library.pop("features"), values)
    assert library == {}
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"key": "abc"}
    mapped = dataset.load().values
    np.testing.assert_array_equal(mapped, values)
    assert isinstance(mapped, np.memmap)
    assert mapped.dtype == np.float32
    save_file({"features": values.astype(np.float16)}, path, metadata={"key": "abc"})
    assert dataset.load() == FeatureSet(key="", values=None)  # halves of an older version are computed again


def test_a_set_is_replaced_as_a_whole_and_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Arrays that were loaded stay while the file is replaced; a failed save keeps the old file; a damaged file is named."""
    path = tmp_path / "features.safetensors"
    dataset = FeaturesDataset(str(path))
    dataset.save(FeatureSet("abc", VALUES))
    before, inode = dataset.load(), path.stat().st_ino
    assert (before.key, before.values.dtype) == ("abc", np.float32)
    dataset.save(before)
    assert path.stat().st_ino == inode
    for chunk in chunks(VALUES + 1, 1, "new"):
        dataset.save(chunk)
    np.testing.assert_array_equal(before.values, VALUES)
    np.testing.assert_array_equal(dataset.load().values, VALUES + 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("grpo_pipeline.tasks.attention.pipelines.feature_file.os.fsync", fail)
    with pytest.raises(DatasetError, match="disk full"):
        dataset.save(FeatureSet("other", VALUES))
    assert dataset.load().key == "new"
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DatasetError, match=r"features .*features.safetensors must be a safetensors file, got: .*; remove it"):
        dataset.load()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (FeatureChunk("abc", 2, 3, VALUES[:1]), "at row 1, got float32 .* at row 2"),
        (FeatureChunk("abc", 1, 3, VALUES[:1, :, :1]), "rows of .3, 3, 2, 2. at row 1"),
        (FeatureChunk("abc", 1, 3, VALUES[:1].astype(np.float16)), "must go on with float32 .* got float16"),
    ],
)
def test_chunks_that_do_not_follow_are_refused_and_leave_nothing(tmp_path: Path, bad: FeatureChunk, message: str):
    dataset, first = FeaturesDataset(str(tmp_path / "features.safetensors")), FeatureChunk("abc", 0, 3, VALUES[:1])
    dataset.save(first)
    with pytest.raises(DatasetError, match=message):
        dataset.save(bad)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetError, match="must start with row 0, got row 1"):
        dataset.save(FeatureChunk("abc", 1, 3, VALUES[:1]))
    dataset.save(first)
    dataset.release()
    assert list(tmp_path.iterdir()) == []


IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)


def chunk(name, *, first=False, last=False, source="phantom"):
    files = {f"images/{name}.png": IMAGE + ord(name), f"region/{name}.png": IMAGE > 5}
    rows = pd.DataFrame([{"core_id": name, "image": f"images/{name}.png", "psa": np.nan}])
    return ImageChunk(files, rows, is_first=first, is_last=last, source=source)


def dataset(tmp_path):
    return ImageFolderDataset(filepath=str(tmp_path / "data" / "phantom"))


def test_chunks_appear_as_one_folder_with_the_last_and_replace_the_one_before(tmp_path, monkeypatch):
    """An unfinished folder leaves the old folder and goes; users' own data are never written to."""
    data, target = dataset(tmp_path), tmp_path / "data" / "phantom"
    with pytest.raises(DatasetError, match="must start with a first chunk"):
        data.save(chunk("b", last=True))
    data.save(chunk("a", first=True))
    assert not data.exists()
    data.release()
    assert not target.parent.exists() or list(target.parent.iterdir()) == []
    data.save(chunk("a", first=True))
    data.save(chunk("b", last=True))
    folder = dataset(tmp_path).load()
    rows = [{"core_id": name, "image": f"images/{name}.png", "psa": ""} for name in "ab"]
    assert folder.manifest.to_dict("records") == rows
    assert folder.manifest.index.tolist() == [2, 3]
    np.testing.assert_array_equal(folder.read_image("images/b.png"), IMAGE + ord("b"))
    np.testing.assert_array_equal(folder.read_mask("region/a.png"), IMAGE > 5)
    preview = data.preview(nrows=1)
    assert preview == {"index": [2], "columns": ["core_id", "image", "psa"], "data": [["a", "images/a.png", ""]]}
    assert ImageFolderDataset.preview.__annotations__["return"].__name__ == "TablePreview"
    data.save(chunk("x", first=True))
    data.save(chunk("y", first=True, last=True, source="manifest"))
    assert dataset(tmp_path).load().manifest["core_id"].tolist() == ["a", "b"]
    data.save(chunk("c", first=True, last=True))
    folder = data.load()
    assert folder.manifest["core_id"].tolist() == ["c"]
    assert [path.name for path in (folder.root / "images").iterdir()] == ["c.png"]
    assert [path.name for path in target.parent.iterdir()] == ["phantom"]
    indirect = ImageFolderDataset(filepath=str(target / ".." / "phantom"))
    monkeypatch.chdir(os.sep)
    assert indirect.load().root == target


def test_what_is_missing_or_broken_says_where_to_set_it(tmp_path):
    (tmp_path / "index.csv").write_text("a\n1\n")
    for folder, manifest, section, message in (
        ("none", None, {}, r"the data root must be an existing folder, got nothing at .*attention_root"),
        ("none", None, {"section": "attention.predict"}, "set attention_predict_root in globals.yml or run with .*predict.root="),
        ("", None, {}, r"manifest.csv must be the manifest, got \['index.csv'\] in .*; set attention_manifest in globals"),
        (
            "",
            None,
            {"section": "attention.predict"},
            "set attention_predict_manifest in globals.yml or run with --params attention.predict.manifest=<file>, relative",
        ),
        ("", "a,a\n1,2\n", {}, r"manifest.csv must name each column once"),
    ):
        if manifest is not None:
            (tmp_path / "manifest.csv").write_text(manifest)
        with pytest.raises(DatasetError, match=message):
            ImageFolderDataset(filepath=str(tmp_path / folder), **section).load()
    assert ImageFolderDataset(filepath=str(tmp_path), manifest="index.csv").load().manifest["a"].tolist() == ["1"]
