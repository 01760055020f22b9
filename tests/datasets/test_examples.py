import numpy as np
import pandas as pd
import pytest
from kedro.io import DatasetError

from grpo_pipeline.datasets.examples import ExamplesDataset
from grpo_pipeline.tasks.attention.examples import Examples

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
            "split": ["train"] * n,
        }
    )
    masks = {name: rng.random((n, size, size)) > 0.5 for name in ARRAYS[1:]}
    return Examples(table=table, images=rng.integers(0, 256, (n, size, size), dtype=np.uint8), digest="d1", **masks)


def test_round_trip_is_exact(tmp_path):
    data, saved = ExamplesDataset(filepath=str(tmp_path / "x" / "examples")), examples()
    data.save(saved)
    loaded = data.load()
    pd.testing.assert_frame_equal(loaded.table, saved.table, check_exact=True)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(saved, name))
        assert getattr(loaded, name).dtype == getattr(saved, name).dtype
    assert loaded.digest == "d1"


def test_arrays_are_mapped_read_only(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    data.save(examples())
    loaded = data.load()
    assert isinstance(loaded.images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        loaded.images[0] = 0


def test_saving_again_replaces_everything_and_leaves_what_was_loaded(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    data.save(examples(3))
    before = data.load()
    data.save(examples(4))
    assert len(data.load().table) == 4
    np.testing.assert_array_equal(before.images, examples(3).images)
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_failed_save_leaves_the_old_folder(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    data.save(examples(3))
    broken = examples(4)
    object.__setattr__(broken, "lesion", np.array([{}]))
    with pytest.raises(DatasetError):
        data.save(broken)
    assert len(data.load().table) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["examples"]


def test_missing_folder_says_what_to_run(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    assert not data.exists()
    with pytest.raises(DatasetError, match="must hold the model input, got nothing there; run the pipeline attention_data first"):
        data.load()


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    data.save(examples(3))
    np.save(tmp_path / "examples" / "bag.npy", np.zeros((2, 8, 8), bool), allow_pickle=False)
    with pytest.raises(DatasetError, match="must hold as many rows as images, got .*'bag': 2"):
        data.load()


def test_preview_is_the_head_of_the_table(tmp_path):
    data = ExamplesDataset(filepath=str(tmp_path / "examples"))
    data.save(examples(3))
    preview = data.preview(nrows=1)
    assert preview["columns"] == ["core_id", "center", "label", "involvement", "has_lesion_mask", "split"]
    assert preview["data"] == [["000", "NA", 0, 0.1 + 0.2, False, "train"]]
