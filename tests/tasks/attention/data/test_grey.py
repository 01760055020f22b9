import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.grey import fitted_size, pad_to_square, resize_image, resize_mask, to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import UnreadableFileError
from grpo_pipeline.tasks.attention.data.model_spacing import model_spacing, with_model_spacing


def test_range_follows_the_type_and_minmax_stretches_each_image():
    for array, expected in (
        (np.array([[0, 7, 255]], np.uint8), [[0, 7, 255]]),
        (np.array([[0, 257, 65535]], np.uint16), [[0, 1, 255]]),
        (np.array([[0.0, 0.5, 1.0]]), [[0, 128, 255]]),
        (np.array([[False, True]]), [[0, 255]]),
        (np.array([[0, 200]], np.int64), [[0, 200]]),
    ):
        grey = to_grey8(array, name="x", intensity="dtype")
        np.testing.assert_array_equal(grey, expected)
        assert grey.dtype == np.uint8
    np.testing.assert_array_equal(to_grey8(np.array([[-60.0, -30.0, 0.0]]), name="x", intensity="minmax"), [[0, 128, 255]])
    np.testing.assert_array_equal(to_grey8(np.full((2, 2), 9.0), name="x", intensity="minmax"), np.zeros((2, 2)))


@pytest.mark.parametrize("array", [np.array([[-0.1, 0.5]]), np.array([[0.0, 1.5]]), np.array([[256, 0]]), np.array([[-1, 0]])])
def test_values_outside_the_range_are_refused(array):
    with pytest.raises(UnreadableFileError, match=r"'x.npy' must hold grey levels .* attention.data.intensity: minmax"):
        to_grey8(array, name="x.npy", intensity="dtype")


@given(st.integers(1, 400), st.integers(1, 400), st.integers(16, 128))
def test_longer_side_fills_the_square_and_the_aspect_stays(height, width, size):
    new_height, new_width = fitted_size((height, width), size)
    assert max(new_height, new_width) == size
    assert abs(new_height - max(1, height * size / max(height, width))) <= 0.5
    assert abs(new_width - max(1, width * size / max(height, width))) <= 0.5


def test_halving_a_mask_takes_pixels_that_are_half_covered():
    mask = np.zeros((64, 64), bool)
    mask[10:12, 10:11] = True  # half of the model pixel (5, 5)
    mask[20, 20] = True  # a quarter of (10, 10)
    expected = np.zeros((32, 32), bool)
    expected[5, 5] = True
    np.testing.assert_array_equal(resize_mask(mask, 32), expected)
    mask = np.zeros((320, 320), bool)
    mask[105, 205] = True
    assert np.argwhere(resize_mask(mask, 32)).tolist() == [[10, 20]]  # a small mask does not vanish
    assert not resize_mask(np.zeros((50, 70), bool), 32).any()


def test_image_and_mask_land_in_the_same_place():
    """A bright square in a wide image: after resizing, the mask lies where the image is bright and nowhere in the padding."""
    mask = np.zeros((60, 120), bool)
    mask[20:40, 80:100] = True
    image, small = resize_image(mask.astype(np.uint8) * 255, 48), resize_mask(mask, 48)
    np.testing.assert_array_equal(small, image >= 128)
    assert np.argwhere(small).min(axis=0).tolist() == [12 + 8, 32]
    assert not resize_mask(np.ones((60, 120), bool), 48)[[0, 11, 36, 47]].any()
    square = pad_to_square(np.ones((1, 2), np.uint8), 4)  # the remainder is below and right
    assert square.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("size", ["1 1", "3 1000", "512 384", "385 511", "77 76"])
def test_the_image_keeps_its_extent_in_millimetres(size):
    height, width = map(int, size.split())
    for side in (16, 128, 1024):
        row, column = model_spacing("0.3 0.07", size, side)
        fitted = fitted_size((height, width), side)
        assert (row * fitted[0], column * fitted[1]) == pytest.approx((0.3 * height, 0.07 * width))


def test_unknown_spacing_is_nan_and_a_table_without_any_is_left_alone():
    assert np.isnan(model_spacing("", "4 4", 128)).all()
    table = pd.DataFrame({"core_id": ["a", "b"]})
    assert with_model_spacing(table, 128) is table
    found = with_model_spacing(table.assign(stored_size=["64 128", "9 9"], spacing_mm=["0.5 0.25", ""]), 128)
    assert found["row_mm"].tolist()[0] == 0.5
    assert found["column_mm"].tolist()[0] == 0.25
    assert found[["row_mm", "column_mm"]].iloc[1].isna().all()
