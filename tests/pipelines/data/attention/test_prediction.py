"""Overlays: the heatmap and the points lie where they belong."""

import numpy as np

from grpo_pipeline.pipelines.data.attention.prediction import draw_overlay, draw_sheet, shrink


def test_without_heatmap_and_points_the_image_stays():
    image = np.arange(200, dtype=np.uint8).reshape(10, 20)
    np.testing.assert_array_equal(draw_overlay(image, np.zeros((10, 20)), np.zeros((0, 2))), image[..., None].repeat(3, -1))


def test_the_heatmap_colours_its_own_pixels_alone():
    heatmap = np.zeros((10, 20))
    heatmap[2:4, 15:18] = 1.0
    picture = draw_overlay(np.full((10, 20), 100, np.uint8), heatmap, np.zeros((0, 2)))
    changed = (picture != 100).any(-1)
    np.testing.assert_array_equal(changed, heatmap > 0)


def test_a_point_is_drawn_around_its_pixel():
    # (30.5, 10.5) is the centre of the pixel in row 10, column 30.
    picture = draw_overlay(np.zeros((60, 80), np.uint8), np.zeros((60, 80)), np.array([[30.5, 10.5]]))
    rows, columns = np.nonzero(picture.any(-1))
    assert (rows.mean(), columns.mean()) == (10.0, 30.0)
    assert rows.max() - rows.min() == 4  # the smallest radius, 2


def test_thumbnails_keep_the_aspect():
    assert shrink(np.zeros((640, 320, 3), np.uint8)).shape == (320, 160, 3)
    assert shrink(np.zeros((20, 30, 3), np.uint8)).shape == (20, 30, 3)


def test_the_sheet_has_a_panel_per_picture_with_its_score():
    rows = [{"core_id": f"$c{i}", "prob": 0.25, "prob_calibrated": [0.5, np.nan][i % 2], "outside": False} for i in range(7)]
    rows[1]["outside"] = None  # of a model that cannot doubt
    rows[2]["outside"] = True
    rows[3] |= {"prob": np.nan, "outside": True}
    figure = draw_sheet(rows, [np.zeros((4, 4, 3), np.uint8)] * 5)
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles[:2] == ["\\$c0\nP(cancer) = 0.25, calibrated 0.50", "\\$c1\nP(cancer) = 0.25"]
    assert titles[2:4] == [
        "\\$c2\nP(cancer) = 0.25, calibrated 0.50\noutside the training images",
        "\\$c3\nno score: outside the training images",
    ]
    assert len(titles) == 5
