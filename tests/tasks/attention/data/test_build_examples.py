import hashlib
import threading

import numpy as np
import pytest

from grpo_pipeline.runs.lookahead import THREAD_NAME
from grpo_pipeline.tasks.attention.data.examples import ARRAYS, build_examples, content_digest, stream_examples
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


def test_splits_and_order(data_set, data_params):
    digest = build(data_set, data_params())[0].digest
    data_set.rows.reverse()
    examples, _ = build(data_set, data_params())
    assert examples.digest == digest
    assert examples.table["core_id"].tolist() == [f"c{i:02d}" for i in range(12)]
    assert examples.table.index.tolist() == list(range(12))
    assert examples.rows("val").tolist() == [4, 5, 6, 7]


def test_whole_image_where_there_are_no_masks(data_set, data_params):
    columns = dict.fromkeys(("region_mask", "bag_mask", "lesion_mask"))
    examples, _ = build(data_set, data_params(columns=columns))
    whole = np.zeros((32, 32), bool)
    whole[4:28] = True
    for mask in (examples.region, examples.bag):
        np.testing.assert_array_equal(mask, np.broadcast_to(whole, (12, 32, 32)))
    assert not examples.lesion.any()


def test_bag_that_was_empty_is_the_region_and_a_lesion_lies_in_it(data_set, data_params):
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


class TestDigest:
    def test_every_part_counts(self, data_set, data_params):
        digests = {build(data_set, data_params())[0].digest}
        digests.add(build(data_set, data_params(), splits=SPLITS | {"val": SPLITS["test"], "test": SPLITS["val"]})[0].digest)
        data_set.rows[1]["involvement"] = "0.1"
        digests.add(build(data_set, data_params())[0].digest)
        data_set.save("region/c01.png", np.ones((24, 32), bool))
        digests.add(build(data_set, data_params())[0].digest)
        data_set.save("images/c01.png", np.eye(24, 32, dtype=np.uint8))
        digests.add(build(data_set, data_params())[0].digest)
        assert len(digests) == 5


class TestStreaming:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_chunks_are_the_whole_in_order(self, data_set, data_params, monkeypatch, workers):
        monkeypatch.setattr("grpo_pipeline.tasks.attention.data.examples.CHUNK_BYTES", 5 * 4 * 32 * 32)
        params = data_params(workers=workers)
        whole, imputation = build(data_set, params)
        raw = data_set.open()
        chunks = list(stream_examples(raw, check_manifest(raw, OWN, params)[0], SPLITS, params))
        assert [(chunk.start, len(chunk.images), chunk.is_last) for chunk, _ in chunks] == [
            (0, 5, False),
            (5, 5, False),
            (10, 2, True),
        ]
        for name in ARRAYS:
            np.testing.assert_array_equal(np.concatenate([getattr(chunk, name) for chunk, _ in chunks]), getattr(whole, name))
        assert [found for _, found in chunks] == [imputation] * 3

    def test_the_digest_is_that_of_all_bytes_at_once(self, data_set, data_params, monkeypatch):
        examples, _ = build(data_set, data_params())
        arrays = [getattr(examples, name) for name in ARRAYS]
        expected = hashlib.sha256(examples.table.drop(columns="row").to_csv(index=False, lineterminator="\n").encode())
        for array in arrays:
            expected.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        assert examples.digest == expected.hexdigest()
        monkeypatch.setattr("grpo_pipeline.tasks.attention.data.examples.CHUNK_BYTES", 3000)
        assert content_digest(examples.table, arrays) == expected.hexdigest()

    def test_a_file_that_changed_after_the_check_is_named_with_its_line(self, data_set, data_params):
        raw, params = data_set.open(), data_params(workers=2)
        checked, _, _ = check_manifest(raw, OWN, params)
        (data_set.root / "needle/c07.png").unlink()
        with pytest.raises(
            ValueError, match=r"manifest.csv line 9 \(c07\): 'needle/c07.png' must be a file below .*, got nothing"
        ):
            list(stream_examples(raw, checked, SPLITS, params))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]
