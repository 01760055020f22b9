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


@pytest.mark.parametrize(
    ("folder", "manifest", "section", "message"),
    [
        ("none", "a", None, r"the data root must be an existing folder, got nothing at .*attention_root"),
        ("none", "a", "attention.predict", "set attention_predict_root in globals.yml or run with --params .*predict.root="),
        ("", None, None, r"manifest.csv must be the manifest, got \['index.csv'\] in .*; set attention_manifest in globals"),
        ("", None, "attention.predict", "set attention_predict_manifest in globals.yml, relative to the root"),
        ("", "a,a\n1,2\n", None, r"manifest.csv must name each column once"),
    ],
)
def test_what_is_missing_or_broken_says_where_to_set_it(tmp_path, folder, manifest, section, message):
    (tmp_path / "index.csv").write_text("a\n1\n")
    if manifest is not None:
        (tmp_path / "manifest.csv").write_text(manifest)
    options = {} if section is None else {"section": section}
    with pytest.raises(DatasetError, match=message):
        ImageFolderDataset(filepath=str(tmp_path / folder), **options).load()
    assert ImageFolderDataset(filepath=str(tmp_path), manifest="index.csv").load().manifest["a"].tolist() == ["1"]
