import os

import numpy as np
import pandas as pd
import pytest
from kedro.io import DatasetError

from grpo_pipeline.pipelines.data.attention.image_folder import ImageFolderDataset
from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk

IMAGE = np.arange(12, dtype=np.uint8).reshape(3, 4)


def chunk(name, *, first=False, last=False, source="phantom"):
    files = {f"images/{name}.png": IMAGE + ord(name), f"region/{name}.png": IMAGE > 5}
    rows = pd.DataFrame([{"core_id": name, "image": f"images/{name}.png", "psa": np.nan}])
    return ImageChunk(files, rows, is_first=first, is_last=last, source=source)


def dataset(tmp_path):
    return ImageFolderDataset(filepath=str(tmp_path / "data" / "phantom"))


def entries(tmp_path):
    folder = tmp_path / "data"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_chunks_come_back_as_one_folder(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True))
    data.save(chunk("b", last=True))
    folder = dataset(tmp_path).load()
    assert folder.manifest.to_dict("records") == [
        {"core_id": "a", "image": "images/a.png", "psa": ""},
        {"core_id": "b", "image": "images/b.png", "psa": ""},
    ]
    assert folder.manifest.index.tolist() == [2, 3]
    np.testing.assert_array_equal(folder.read_image("images/b.png"), IMAGE + ord("b"))
    np.testing.assert_array_equal(folder.read_mask("region/a.png"), IMAGE > 5)


def test_folder_appears_with_its_last_chunk_only(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True))
    assert not data.exists()
    data.save(chunk("b", last=True))
    assert data.exists()
    assert entries(tmp_path) == ["phantom"]


def test_unfinished_folder_leaves_the_old_one_and_is_discarded_by_the_next(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True, last=True))
    data.save(chunk("b", first=True))
    assert dataset(tmp_path).load().manifest["core_id"].tolist() == ["a"]
    data.save(chunk("c", first=True, last=True))
    folder = data.load()
    assert folder.manifest["core_id"].tolist() == ["c"]
    assert sorted(path.name for path in (folder.root / "images").iterdir()) == ["c.png"]
    assert entries(tmp_path) == ["phantom"]


def test_release_removes_an_unfinished_folder(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True))
    data.release()
    assert entries(tmp_path) == []


def test_later_chunk_without_a_first_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="must start with a first chunk"):
        dataset(tmp_path).save(chunk("b", last=True))


def test_users_own_data_are_never_written_to(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True, last=True))
    data.save(chunk("b", first=True, last=True, source="manifest"))
    assert data.load().manifest["core_id"].tolist() == ["a"]


def test_missing_root_says_where_to_set_it(tmp_path):
    with pytest.raises(DatasetError, match=r"the data root must be an existing folder, got nothing at .*attention_root"):
        dataset(tmp_path).load()


def test_missing_manifest_names_the_csv_files_that_are_there(tmp_path):
    (tmp_path / "index.csv").write_text("a\n1\n")
    with pytest.raises(
        DatasetError,
        match=r"manifest.csv must be the manifest, got \['index.csv'\] in .*; set attention_manifest in globals.yml, relative",
    ):
        ImageFolderDataset(filepath=str(tmp_path)).load()
    with pytest.raises(DatasetError, match="set attention_predict_manifest in globals.yml, relative to the root"):
        ImageFolderDataset(filepath=str(tmp_path), section="attention.predict").load()
    with pytest.raises(
        DatasetError, match=r"set attention_predict_root in globals.yml or run with --params attention.predict.root="
    ):
        ImageFolderDataset(filepath=str(tmp_path / "none"), section="attention.predict").load()
    assert ImageFolderDataset(filepath=str(tmp_path), manifest="index.csv").load().manifest["a"].tolist() == ["1"]


def test_broken_manifest_is_one_sentence(tmp_path):
    (tmp_path / "manifest.csv").write_text("a,a\n1,2\n")
    with pytest.raises(DatasetError, match=r"manifest.csv must name each column once"):
        ImageFolderDataset(filepath=str(tmp_path)).load()


def test_path_with_parents_is_normalised_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "manifest.csv").write_text("a\n1\n")
    data = ImageFolderDataset(filepath=str(tmp_path / "project" / ".." / "."))
    monkeypatch.chdir(os.sep)
    assert data.load().root == tmp_path


def test_preview_is_the_head_of_the_manifest(tmp_path):
    data = dataset(tmp_path)
    data.save(chunk("a", first=True))
    data.save(chunk("b", last=True))
    preview = data.preview(nrows=1)
    assert preview == {"index": [2], "columns": ["core_id", "image", "psa"], "data": [["a", "images/a.png", ""]]}
    assert ImageFolderDataset.preview.__annotations__["return"].__name__ == "TablePreview"
