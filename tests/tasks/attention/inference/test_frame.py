"""The way from the square model image back to the image's own pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.grey import resize_image
from grpo_pipeline.tasks.attention.inference.frame import Frame

SIDES = st.integers(20, 400)


def test_golden_numbers_of_a_wide_image():
    # 200 x 100 in a square of 64: 64 x 32 pixels, 16 rows of padding above and below; scale 200 / 64 = 3.125.
    frame = Frame(height=100, width=200, size=64)
    assert frame.box == (0, 16, 64, 48)
    np.testing.assert_allclose(frame.to_image(np.array([[0.0, 0.25], [1.0, 0.75], [0.5, 0.5]])), [[0, 0], [200, 100], [100, 50]])
    np.testing.assert_allclose(frame.to_image(np.array([0.5, 0.0])), [100, -50])


def test_an_odd_remainder_goes_below_and_to_the_right():
    # 30 x 61 in 64: height round(30 * 64 / 61) = 31, of the 33 rows left 16 lie above.
    assert Frame(30, 61, 64).box == (0, 16, 64, 47)


@given(SIDES, SIDES, st.sampled_from([32, 64, 128]), st.floats(0, 1), st.floats(0, 1))
def test_there_and_back(height: int, width: int, size: int, u: float, v: float):
    frame, point = Frame(height, width, size), np.array([u * width, v * height])
    square = frame.to_square(point)
    assert ((square >= -1e-9) & (square <= 1 + 1e-9)).all()
    np.testing.assert_allclose(frame.to_image(square), point, atol=1e-9 * max(height, width))


@pytest.mark.parametrize("shape", [(300, 200), (120, 333), (64, 64), (47, 90)])
def test_a_bright_square_is_covered_by_the_returned_map(shape: tuple[int, int]):
    height, width = shape
    image = np.zeros(shape, np.uint8)
    top, left, side = height // 3, width // 2, min(shape) // 3
    image[top : top + side, left : left + side] = 255
    square = resize_image(image, 64).reshape(32, 2, 32, 2).mean((1, 3)) / 255
    back = Frame(height, width, 64).map_to_image(square)
    assert back.shape == shape
    margin = -(-max(shape) // 32) + 1
    inside = back[top + margin : top + side - margin, left + margin : left + side - margin]
    assert inside.size
    assert (inside > 0.95).all()
    outside = back.copy()
    outside[max(top - margin, 0) : top + side + margin, max(left - margin, 0) : left + side + margin] = 0
    assert outside.max() < 0.05


def test_a_map_of_the_image_alone_has_nothing_of_the_padding():
    square = np.zeros((32, 32), np.float32)
    square[8:24] = 1.0
    assert Frame(100, 200, 64).map_to_image(square).min() > 1 - 1e-6
