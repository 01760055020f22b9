import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.grey import fitted_size, pad_to_square, resize_image, resize_mask, to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import UnreadableFileError


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[0, 7, 255]], np.uint8), [[0, 7, 255]]),
        (np.array([[0, 257, 65535]], np.uint16), [[0, 1, 255]]),
        (np.array([[0.0, 0.5, 1.0]]), [[0, 128, 255]]),
        (np.array([[False, True]]), [[0, 255]]),
        (np.array([[0, 200]], np.int64), [[0, 200]]),
    ],
)
def test_range_follows_the_type(array, expected):
    grey = to_grey8(array, name="x", intensity="dtype")
    np.testing.assert_array_equal(grey, expected)
    assert grey.dtype == np.uint8


@pytest.mark.parametrize("array", [np.array([[-0.1, 0.5]]), np.array([[0.0, 1.5]]), np.array([[256, 0]]), np.array([[-1, 0]])])
def test_values_outside_the_range_are_refused(array):
    with pytest.raises(UnreadableFileError, match=r"'x.npy' must hold grey levels .* attention.data.intensity: minmax"):
        to_grey8(array, name="x.npy", intensity="dtype")


def test_minmax_stretches_each_image():
    np.testing.assert_array_equal(to_grey8(np.array([[-60.0, -30.0, 0.0]]), name="x", intensity="minmax"), [[0, 128, 255]])
    np.testing.assert_array_equal(to_grey8(np.full((2, 2), 9.0), name="x", intensity="minmax"), np.zeros((2, 2)))


def test_padding_is_centred_and_its_remainder_is_below_and_right():
    square = pad_to_square(np.ones((1, 2), np.uint8), 4)
    assert square.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


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


def test_mask_too_small_for_a_pixel_does_not_vanish():
    mask = np.zeros((320, 320), bool)
    mask[105, 205] = True
    assert np.argwhere(resize_mask(mask, 32)).tolist() == [[10, 20]]


def test_empty_mask_stays_empty():
    assert not resize_mask(np.zeros((50, 70), bool), 32).any()


def test_image_and_mask_land_in_the_same_place():
    """A bright square in a wide image: after resizing, the mask lies where the image is bright and nowhere in the padding."""
    mask = np.zeros((60, 120), bool)
    mask[20:40, 80:100] = True
    image, small = resize_image(mask.astype(np.uint8) * 255, 48), resize_mask(mask, 48)
    np.testing.assert_array_equal(small, image >= 128)
    assert np.argwhere(small).min(axis=0).tolist() == [12 + 8, 32]
    assert not resize_mask(np.ones((60, 120), bool), 48)[[0, 11, 36, 47]].any()
