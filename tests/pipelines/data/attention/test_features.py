from pathlib import Path

import numpy as np
import pytest
from kedro.io import DatasetError
from safetensors import safe_open
from safetensors.numpy import load_file

from grpo_pipeline.pipelines.data.attention.features import FeaturesDataset
from grpo_pipeline.tasks.attention.build import FeatureChunk, FeatureSet

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


def chunks(values: np.ndarray, size: int, key: str = "abc") -> list[FeatureChunk]:
    return [FeatureChunk(key, at, len(values), values[at : at + size]) for at in range(0, len(values), size)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_chunks_make_the_file_that_the_library_reads(tmp_path: Path, dtype: type, size: int):
    path, values = tmp_path / "new" / "features.safetensors", np.random.default_rng(0).normal(size=(5, 3, 2, 2)).astype(dtype)
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
    assert mapped.dtype == dtype


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

    monkeypatch.setattr("grpo_pipeline.pipelines.data.attention.features.os.fsync", fail)
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
