"""Heatmaps appear complete or not at all, and come back as the probabilities they were."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from kedro.io import DatasetError
from PIL import Image

from grpo_pipeline.pipelines.data.attention.heatmaps import HeatmapFiles, HeatmapsDataset


def files(name: str, *, first: bool = False, last: bool = False, **changes) -> HeatmapFiles:
    heatmap = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    values = {"overlay": np.zeros((3, 4, 3), np.uint8), "heatmap": heatmap, "volume": None, "spacing_mm": None}
    return HeatmapFiles(name=name, is_first=first, is_last=last, **values | changes)


def test_there_and_back(tmp_path: Path):
    dataset = HeatmapsDataset(filepath=str(tmp_path / "heatmaps"))
    volume = nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32), np.eye(4))
    dataset.save(files("a", first=True, spacing_mm=(0.5, 0.25)))
    assert not (tmp_path / "heatmaps").exists()
    dataset.save(files("b", last=True, volume=volume))
    loaded = dataset.load()
    assert list(loaded) == ["a", "b"]
    # Half a level of 65535, by rounding.
    np.testing.assert_allclose(loaded["a"](), np.linspace(0, 1, 12).reshape(3, 4), atol=0.51 / 65535)
    assert nibabel.load(tmp_path / "heatmaps/b.nii.gz").shape == (2, 2, 2)
    with Image.open(tmp_path / "heatmaps/a.png") as picture:
        # 25.4 / 0.25 and 25.4 / 0.5 pixels per inch; PNG keeps whole pixels per metre.
        assert picture.info["dpi"] == pytest.approx((101.6, 50.8), abs=0.02)


def test_a_new_run_replaces_the_folder_and_a_stopped_one_leaves_it(tmp_path: Path):
    dataset = HeatmapsDataset(filepath=str(tmp_path / "heatmaps"))
    dataset.save(files("old", first=True, last=True))
    dataset.save(files("half", first=True))
    dataset.release()
    assert list(dataset.load()) == ["old"]
    dataset.save(files("new", first=True, last=True))
    assert list(dataset.load()) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["heatmaps"]


def test_what_is_missing_or_out_of_order_is_said(tmp_path: Path):
    dataset = HeatmapsDataset(filepath=str(tmp_path / "heatmaps"))
    with pytest.raises(DatasetError, match="must hold heatmaps, got nothing there; run the pipeline attention_predict"):
        dataset.load()
    with pytest.raises(DatasetError, match="must start with a first core"):
        dataset.save(files("late"))
