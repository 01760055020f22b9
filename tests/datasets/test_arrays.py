import numpy as np
import pytest
from kedro.io.core import DatasetError, Version

from grpo_pipeline.datasets.arrays import ArraysDataset
from grpo_pipeline.datasets.figure import FigureDataset

ARRAYS = {
    "core_id": np.array(["a", "prostate-0007", "ü"]),
    "label": np.array([0, 1, 1]),
    "image": np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4),
    "region": np.eye(4, dtype=bool)[None].repeat(3, axis=0),
    "heatmap": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 2, 2),
    "empty": np.zeros((0, 3), dtype=np.float32),
}


def assert_same(loaded, saved):
    assert list(loaded) == list(saved)
    for name, array in saved.items():
        assert loaded[name].dtype == array.dtype, name
        np.testing.assert_array_equal(loaded[name], array)


def test_arrays_return_with_their_types_and_shapes(tmp_path):
    dataset = ArraysDataset(filepath=str(tmp_path / "sub" / "arrays.npz"))
    assert not dataset.exists()
    dataset.save(ARRAYS)
    assert dataset.exists()
    assert_same(dataset.load(), ARRAYS)


def test_each_version_keeps_its_own_file(tmp_path):
    path = str(tmp_path / "arrays.npz")
    for stamp, shift in (("2024-01-01T00.00.00.000Z", 0), ("2024-01-02T00.00.00.000Z", 5)):
        ArraysDataset(filepath=path, version=Version(None, stamp)).save({"x": np.arange(3) + shift})
    np.testing.assert_array_equal(ArraysDataset(filepath=path, version=Version(None, None)).load()["x"], [5, 6, 7])
    first = ArraysDataset(filepath=path, version=Version("2024-01-01T00.00.00.000Z", None))
    np.testing.assert_array_equal(first.load()["x"], [0, 1, 2])


@pytest.mark.parametrize("value", [np.array([{"a": 1}], dtype=object), np.array(["a", None], dtype=object), [1, 2]])
def test_python_objects_are_refused_and_leave_no_file(tmp_path, value):
    dataset = ArraysDataset(filepath=str(tmp_path / "arrays.npz"))
    with pytest.raises(DatasetError, match="array 'bad' must be a NumPy array of numbers, booleans or strings"):
        dataset.save({"good": np.zeros(2), "bad": value})
    assert list(tmp_path.iterdir()) == []


def test_a_pickled_array_in_the_file_is_not_loaded(tmp_path):
    np.savez(tmp_path / "arrays.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DatasetError, match="allow_pickle=False"):
        ArraysDataset(filepath=str(tmp_path / "arrays.npz")).load()


def test_a_figure_comes_back_as_png_bytes(tmp_path):
    from matplotlib.figure import Figure

    dataset = FigureDataset(filepath=str(tmp_path / "sheet.png"), version=Version(None, "2024-01-01T00.00.00.000Z"))
    dataset.save(Figure(figsize=(1, 1)))
    image = dataset.load()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image == (tmp_path / "sheet.png" / "2024-01-01T00.00.00.000Z" / "sheet.png").read_bytes()
