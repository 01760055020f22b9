import numpy as np
import pytest
from matplotlib.contour import ContourSet

from grpo_pipeline.pipelines.data.attention.image_sheet import image_sheet


@pytest.fixture(scope="module")
def sheet(showcase):
    arrays = showcase()
    return arrays, image_sheet(arrays, arm="grpo")


def markers(axes):
    return [artist for artist in axes.collections if not isinstance(artist, ContourSet)]


def outlines(axes):
    return [artist for artist in axes.collections if isinstance(artist, ContourSet)]


def test_one_panel_per_core_with_truth_and_probability(sheet):
    arrays, figure = sheet
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 12
    assert titles[1] == f"core0001\ncancer, P(cancer) = {arrays['prob'][1]:.2f}"
    assert titles[2].splitlines()[1].startswith("benign")


def test_points_are_drawn_where_they_are_in_the_images_frame(sheet):
    arrays, figure = sheet
    for i, axes in enumerate(figure.axes):
        untrained, trained = markers(axes)
        np.testing.assert_allclose(untrained.get_offsets(), arrays["points_untrained"][i], rtol=1e-6)
        np.testing.assert_allclose(trained.get_offsets(), arrays["points_trained"][i], rtol=1e-6)


def test_a_point_in_a_cell_lies_on_that_cell_of_image_heatmap_and_lesion(showcase):
    """One bright image block, one hot heatmap cell, one lesion block, one point: all at (x, y) = (5.5 / 8, 2.5 / 8)."""
    arrays = {name: array[:1].copy() for name, array in showcase(size=64, cells=8, k=1).items()}
    for name in ("image", "region", "bag", "lesion", "heatmap"):
        arrays[name][:] = 0
    arrays["image"][0, 16:24, 40:48] = 255
    arrays["lesion"][0, 16:24, 40:48] = True
    arrays["heatmap"][0, 2, 5] = 1.0
    arrays["points_trained"][0, 0] = arrays["points_untrained"][0, 0] = (5.5 / 8, 2.5 / 8)
    figure = image_sheet(arrays, arm="grpo")
    axes = figure.axes[0]
    image, heat = axes.images
    for picture, cells in ((image, 64), (heat, 8)):
        left, right, bottom, top = picture.get_extent()
        x, y = markers(axes)[1].get_offsets()[0]
        column, row = int((x - left) / (right - left) * cells), int((y - top) / (bottom - top) * cells)
        assert np.asarray(picture.get_array())[row, column] > 0.9
    (lesion,) = outlines(axes)
    vertices = lesion.get_paths()[0].vertices
    # the outline runs along the block's edges: x from 40/64 to 48/64, y from 16/64 to 24/64
    np.testing.assert_allclose([*vertices.min(axis=0), *vertices.max(axis=0)], [0.625, 0.25, 0.75, 0.375], atol=1e-9)
    assert axes.get_ylim() == (1, 0)


def test_heatmap_is_as_opaque_as_it_is_probable(sheet):
    arrays, figure = sheet
    opacity = figure.axes[0].images[1].get_alpha()
    np.testing.assert_allclose(opacity, 0.55 * arrays["heatmap"][0], rtol=1e-6)


def test_a_core_without_lesion_has_no_lesion_outline(sheet):
    _, figure = sheet
    assert [len(outlines(axes)) for axes in figure.axes[:4]] == [2, 3, 2, 3]
