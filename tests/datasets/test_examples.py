from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kedro.io import DatasetError

from grpo_pipeline.datasets.examples import ExamplesDataset
from grpo_pipeline.tasks.attention.data.examples import ExampleChunk, Examples, content_digest


def open_examples(folder):
    return ExamplesDataset(filepath=str(folder), holds="grpo_pipeline.tasks.attention.data.examples:Examples")


ARRAYS = ("images", "region", "bag", "lesion")


def examples(n=3, size=8):
    rng = np.random.default_rng(n)
    table = pd.DataFrame(
        {
            "core_id": [f"00{i}" for i in range(n)],
            "center": ["NA", "", 'b,"c"'][:n] + ["x"] * max(0, n - 3),
            "label": np.arange(n) % 2,
            "involvement": [0.1 + 0.2, np.nan, 1 / 3][:n] + [0.0] * max(0, n - 3),
            "has_lesion_mask": [bool(i % 2) for i in range(n)],
            "row": [i + 2 for i in range(n)],
            "split": ["train"] * n,
        }
    )
    masks = {name: rng.random((n, size, size)) > 0.5 for name in ARRAYS[1:]}
    return Examples(table=table, images=rng.integers(0, 256, (n, size, size), dtype=np.uint8), digest="d1", **masks)


def test_round_trip_is_exact(tmp_path):
    data, saved = open_examples(tmp_path / "x" / "examples"), replace(examples(), clinical=("involvement",))
    data.save(saved)
    loaded = data.load()
    pd.testing.assert_frame_equal(loaded.table, saved.table, check_exact=True)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(saved, name))
        assert getattr(loaded, name).dtype == getattr(saved, name).dtype
    assert (loaded.digest, loaded.clinical) == ("d1", ("involvement",))


def test_arrays_are_mapped_read_only(tmp_path):
    data = open_examples(tmp_path / "examples")
    data.save(examples())
    loaded = data.load()
    assert isinstance(loaded.images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        loaded.images[0] = 0


def test_saving_again_replaces_everything_and_leaves_what_was_loaded(tmp_path):
    data = open_examples(tmp_path / "examples")
    data.save(examples(3))
    before = data.load()
    data.save(examples(4))
    assert len(data.load().table) == 4
    np.testing.assert_array_equal(before.images, examples(3).images)
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_failed_save_leaves_the_old_folder(tmp_path):
    data = open_examples(tmp_path / "examples")
    data.save(examples(3))
    broken = examples(4)
    object.__setattr__(broken, "lesion", np.array([{}]))
    with pytest.raises(DatasetError):
        data.save(broken)
    assert len(data.load().table) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    data = open_examples(tmp_path / "examples")
    data.save(examples(3))
    np.save(tmp_path / "examples" / "bag.npy", np.zeros((2, 8, 8), bool), allow_pickle=False)
    with pytest.raises(DatasetError, match="must hold as many rows in every part, got .*'bag': 2"):
        data.load()


def chunks(whole, size):
    """The same data set in pieces of ``size`` rows."""
    return [
        ExampleChunk(whole.table, start, **{name: getattr(whole, name)[start : start + size] for name in ARRAYS})
        for start in range(0, len(whole.table), size)
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_chunks_write_the_bytes_of_the_whole(tmp_path, size):
    whole = examples(7)
    data = open_examples(tmp_path / "examples")
    for chunk in chunks(whole, size):
        assert not data.exists()
        data.save(chunk)
    for name in ARRAYS:
        np.save(tmp_path / "expected.npy", getattr(whole, name), allow_pickle=False)
        assert (tmp_path / f"examples/{name}.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    loaded = data.load()
    pd.testing.assert_frame_equal(loaded.table, whole.table, check_exact=True)
    assert loaded.digest == content_digest(whole.table, [getattr(whole, name) for name in ARRAYS])


def test_an_unfinished_build_leaves_the_old_folder(tmp_path):
    data = open_examples(tmp_path / "examples")
    data.save(examples(3))
    data.save(chunks(examples(6), 2)[0])
    assert len(data.load().table) == 3
    data.release()
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]
    data.save(chunks(examples(6), 2)[0])
    for chunk in chunks(examples(5), 2):  # a run that starts anew
        data.save(chunk)
    assert len(data.load().table) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_chunks_out_of_order_are_refused_and_leave_nothing(tmp_path):
    data = open_examples(tmp_path / "examples")
    first, second, third = chunks(examples(6), 2)
    with pytest.raises(DatasetError, match="must start with row 0, got row 2; save them in order"):
        data.save(second)
    data.save(first)
    with pytest.raises(DatasetError, match="rows must be saved in order, got row 4 after 2 rows; save every chunk once"):
        data.save(third)
    assert list(tmp_path.iterdir()) == []
