import json
from pathlib import Path

import numpy as np
import pytest
from kedro.io import DatasetError

from grpo_pipeline.datasets.features import FeaturesDataset
from grpo_pipeline.tasks.attention.features import FeatureSet

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


def test_nothing_saved_is_an_empty_set(tmp_path: Path):
    dataset = FeaturesDataset(str(tmp_path / "features.safetensors"))
    assert dataset.load() == FeatureSet(key="", values=None)
    assert not dataset.exists()


def test_comes_back_as_it_was(tmp_path: Path):
    path = tmp_path / "new" / "features.safetensors"
    FeaturesDataset(str(path)).save(FeatureSet("abc", VALUES))
    loaded = FeaturesDataset(str(path)).load()
    assert loaded.key == "abc"
    assert loaded.values.dtype == np.float32
    np.testing.assert_array_equal(loaded.values, VALUES)
    assert [p.name for p in path.parent.iterdir()] == ["features.safetensors"]


def test_an_empty_set_comes_back_empty(tmp_path: Path):
    dataset = FeaturesDataset(str(tmp_path / "features.safetensors"))
    dataset.save(FeatureSet("abc", VALUES))
    dataset.save(FeatureSet("", None))
    assert dataset.load() == FeatureSet("", None)


def test_a_damaged_file_is_named(tmp_path: Path):
    path = tmp_path / "features.safetensors"
    dataset = FeaturesDataset(str(path))
    dataset.save(FeatureSet("abc", VALUES))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DatasetError, match=r"features .*features.safetensors must be a safetensors file, got: .*; remove it"):
        dataset.load()


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = FeaturesDataset(str(tmp_path / "features.safetensors"))
    dataset.save(FeatureSet("abc", VALUES))

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("grpo_pipeline.datasets.features.save_file", fail)
    with pytest.raises(DatasetError, match="disk full"):
        dataset.save(FeatureSet("new", VALUES + 1))
    assert dataset.load().key == "abc"


def test_preview_shows_key_and_shape(tmp_path: Path):
    dataset = FeaturesDataset(str(tmp_path / "features.safetensors"))
    assert json.loads(dataset.preview()) == {"key": "", "shape": None}
    dataset.save(FeatureSet("abc", VALUES))
    assert json.loads(dataset.preview()) == {"key": "abc", "shape": [2, 3, 2, 2]}
