import hashlib
import threading

import numpy as np
import pytest

from grpo_pipeline.runs.lookahead import THREAD_NAME
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.example_building import build_examples, stream_examples
from grpo_pipeline.tasks.attention.data.examples import ARRAYS, Examples, content_digest
from grpo_pipeline.tasks.attention.data.manifest import check_manifest

OWN = {"source": "manifest", "cores": 0, "complete": True}
SPLITS = {"train": ["c00", "c01", "c02", "c03"], "val": ["c04", "c05", "c06", "c07"], "test": ["c08", "c09", "c10", "c11"]}


def build(data_set, params, *, splits=SPLITS):
    raw = data_set.open()
    checked, _, _ = check_manifest(raw, OWN, params)
    return build_examples(raw, checked, splits, params)


def test_arrays_belong_to_their_rows(data_set, data_params):
    examples, _ = build(data_set, data_params())
    raw = data_set.open()
    assert examples.images.shape == examples.region.shape == examples.bag.shape == examples.lesion.shape == (12, 32, 32)
    # 24 x 32 pixels in a square of 32: nothing is scaled, four rows of zeros above and below
    for i, row in examples.table.iterrows():
        np.testing.assert_array_equal(examples.images[i, 4:28], raw.read_image(row["image"]))
        np.testing.assert_array_equal(examples.region[i, 4:28], raw.read_mask(row["region_mask"]))
        np.testing.assert_array_equal(examples.bag[i, 4:28], raw.read_mask(row["bag_mask"]))
    padding = np.r_[0:4, 28:32]
    assert not examples.images[:, padding].any()
    assert not examples.region[:, padding].any()
    np.testing.assert_array_equal(examples.lesion.any(axis=(1, 2)), examples.table["has_lesion_mask"])


def test_masks_that_are_not_there_or_empty_are_the_region_and_a_lesion_lies_in_it(data_set, data_params):
    examples, _ = build(data_set, data_params(columns=dict.fromkeys(("region_mask", "bag_mask", "lesion_mask"))))
    whole = np.zeros((32, 32), bool)
    whole[4:28] = True
    for mask in (examples.region, examples.bag):
        np.testing.assert_array_equal(mask, np.broadcast_to(whole, (12, 32, 32)))
    assert not examples.lesion.any()
    data_set.save("needle/c03.png", np.zeros((24, 32), bool))
    data_set.save("lesion/c01.png", np.ones((24, 32), bool))
    examples, _ = build(data_set, data_params(empty_bag="region"))
    np.testing.assert_array_equal(examples.bag[3], examples.region[3])
    np.testing.assert_array_equal(examples.lesion[1], examples.region[1])


def test_masks_that_touch_in_a_corner_still_overlap_at_model_size(data_set, data_params):
    region, bag = np.zeros((240, 320), bool), np.zeros((240, 320), bool)
    region[100:200, 100:200], bag[195:235, 199:300] = True, True
    data_set.save("images/c01.png", np.eye(240, 320, dtype=np.uint8))
    data_set.save("region/c01.png", region)
    data_set.save("needle/c01.png", bag)
    data_set.save("lesion/c01.png", region)
    examples, _ = build(data_set, data_params())
    assert (examples.region[1] & examples.bag[1]).sum() == 1


def test_the_digest_is_that_of_all_bytes_and_every_part_but_the_order_counts(data_set, data_params, monkeypatch):
    examples, _ = build(data_set, data_params())
    expected = hashlib.sha256(examples.table.drop(columns="row").to_csv(index=False, lineterminator="\n").encode())
    arrays = [getattr(examples, name) for name in ARRAYS]
    for array in arrays:
        expected.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    assert examples.digest == expected.hexdigest()
    monkeypatch.setattr("grpo_pipeline.tasks.attention.data.examples.CHUNK_BYTES", 3000)
    assert content_digest(examples.table, arrays) == expected.hexdigest()
    data_set.rows.reverse()
    examples, _ = build(data_set, data_params())
    assert examples.table["core_id"].tolist() == [f"c{i:02d}" for i in range(12)]
    assert examples.table.index.tolist() == list(range(12))
    assert examples.rows("val").tolist() == [4, 5, 6, 7]
    digests = [expected.hexdigest(), examples.digest]
    digests.append(build(data_set, data_params(), splits=SPLITS | {"val": SPLITS["test"], "test": SPLITS["val"]})[0].digest)
    data_set.rows[-2]["involvement"] = "0.1"
    digests.append(build(data_set, data_params())[0].digest)
    for name, array in (("region/c01.png", np.ones((24, 32), bool)), ("images/c01.png", np.eye(24, 32, dtype=np.uint8))):
        data_set.save(name, array)
        digests.append(build(data_set, data_params())[0].digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


@pytest.mark.parametrize("cores", [1, 3])
def test_chunks_are_the_whole_in_order_and_a_changed_file_is_named_with_its_line(data_set, data_params, monkeypatch, cores):
    monkeypatch.setattr("grpo_pipeline.tasks.attention.data.example_building.CHUNK_BYTES", 5 * 4 * 32 * 32)
    monkeypatch.setattr("grpo_pipeline.tasks.attention.data.example_building.usable_cores", lambda: cores)
    params, raw = data_params(), data_set.open()
    whole, imputation = build(data_set, params)
    checked, _, _ = check_manifest(raw, OWN, params)
    chunks = list(stream_examples(raw, checked, SPLITS, params))
    found = [(chunk.start, len(chunk.images), chunk.is_last) for chunk, _ in chunks]
    assert found == [(0, 5, False), (5, 5, False), (10, 2, True)]
    for name in ARRAYS:
        np.testing.assert_array_equal(np.concatenate([getattr(chunk, name) for chunk, _ in chunks]), getattr(whole, name))
    assert [found for _, found in chunks] == [imputation] * 3
    (data_set.root / "needle/c07.png").unlink()
    with pytest.raises(ValueError, match=r"manifest.csv line 9 \(c07\): 'needle/c07.png' must be a file below .*, got nothing"):
        list(stream_examples(raw, checked, SPLITS, params))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def test_classes_are_kept_with_their_numbers(data_set, data_params):
    label = {"classes": {"none": ["0"], "some": ["1"]}, "positive": ["some"], "negative": None, "ordinal": True}
    examples, _ = build(data_set, data_params(label=label))
    again = Examples.restored(examples.stored())
    assert again.classes == Classes(names=("none", "some"), positive=("some",), ordinal=True)
    assert again.table["class"].tolist() == again.table["label"].tolist() == [0, 1] * 6
    several = {**label, "ordinal": False, "several": True, "none": ["normal"]}
    found = Examples.restored(build(data_set, data_params(label=several))[0].stored())
    assert found.classes == Classes(names=("none", "some"), positive=("some",), several=True)
    assert found.table["findings"].tolist() == [1, 2] * 6
    assert "classes" not in build(data_set, data_params())[0].stored().meta
