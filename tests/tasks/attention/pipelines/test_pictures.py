"""ROC curves, the sheet of test images, overlays and stored heatmaps: everything lies where it belongs."""

import io
from pathlib import Path

import nibabel
import numpy as np
import pytest
from kedro.io import DatasetError
from matplotlib.contour import ContourSet
from PIL import Image
from sklearn.metrics import roc_curve

from grpo_pipeline.tasks.attention.pipelines.core_sheet import draw_sheet
from grpo_pipeline.tasks.attention.pipelines.image_folder import HeatmapFiles, HeatmapsDataset
from grpo_pipeline.tasks.attention.pipelines.image_overlay import draw_overlay, shrink
from grpo_pipeline.tasks.attention.pipelines.image_sheet import image_sheet
from grpo_pipeline.tasks.attention.pipelines.report_nodes import plot_roc
from grpo_pipeline.tasks.attention.pipelines.roc_curves import LEVELS
from grpo_pipeline.tasks.attention.pipelines.training_animation import still_of, times_uniform, training_animation


def test_the_roc_curve_is_the_best_sensitivity_at_each_specificity_inside_its_band(params, arms):
    axes = plot_roc(params, **arms).axes[0]
    chance, *curves = axes.lines
    assert (chance.get_label(), len(curves), len(axes.collections)) == ("chance", len(arms), len(arms))
    for (arm, table), curve, band in zip(arms.items(), curves, axes.collections, strict=True):
        assert curve.get_label().startswith(f"{arm}: AUROC 0.")
        rows = table[table["rule"] == "policy"]
        false_positives, true_positives, _ = roc_curve(rows["label"], rows["prob"], drop_intermediate=False)
        best = [true_positives[false_positives <= 1 - level + 1e-9].max() for level in LEVELS]
        np.testing.assert_allclose(curve.get_ydata(), best)
        np.testing.assert_allclose(curve.get_xdata(), np.linspace(0, 1, 101), atol=1e-12)
        corners = band.get_paths()[0].vertices
        low, high = (np.array([pick(corners[np.isclose(corners[:, 0], x), 1]) for x in 1 - LEVELS]) for pick in (np.min, np.max))
        assert ((low - 1e-12 <= best) & (best <= high + 1e-12)).mean() > 0.95
        assert (low[-1], high[-1]) == (1.0, 1.0)
        assert np.ptp([low, high], axis=0).max() > 0.05
    single = plot_roc(params, **{arm: rows.assign(label=1) for arm, rows in arms.items()}).axes[0]
    assert [line.get_label() for line in single.lines] == ["chance", *(f"{arm}: undefined (a single class)" for arm in arms)]
    assert all(len(line.get_xdata()) == 0 for line in single.lines[1:])


def test_a_pair_of_panels_shows_its_core_and_a_point_lies_on_its_cell(showcase):
    """One bright image block, one hot heatmap cell, one lesion block, one point: all at (x, y) = (5.5 / 8, 2.5 / 8)."""
    arrays = {name: array[:2].copy() for name, array in showcase(size=64, cells=8, k=2).items()}
    for name in ("image", "region", "bag", "lesion", "heatmap"):
        arrays[name][:] = 0
    arrays["image"][1, 16:24, 40:48] = 255
    arrays["lesion"][1, 16:24, 40:48] = True
    arrays["heatmap"][1, 2, 5] = 1.0
    arrays["points_trained"][1] = (5.5 / 8, 2.5 / 8), (1 / 8, 7 / 8)
    arrays["contribution"] = np.array([[0.5, np.nan], [-0.25, 0.1]])
    figure = image_sheet(arrays, arm="grpo")
    other, beside, axes, heat, *bars = figure.axes
    figure.draw_without_rendering()
    assert np.ptp([one.get_position().y0 for one in (other, beside, axes, heat)]) < 1e-6  # under titles of one line and two
    assert axes.get_title() == f"core0001\ncancer, P(cancer) = {arrays['prob'][1]:.2f}"
    assert [bar.get_xlabel() for bar in bars] == ["contribution of a point to the reward", "heatmap"]
    collections = [[isinstance(artist, ContourSet) for artist in one.collections] for one in (other, beside, axes)]
    assert [sum(kinds) for kinds in collections] == [0, 0, 1]
    for bag, is_named in ((arrays["lesion"], True), (arrays["region"], False)):  # of the whole region: there is no needle
        names = [text.get_text() for text in image_sheet(arrays | {"bag": bag}, arm="grpo").legends[0].get_texts()]
        assert ("needle" in names) == is_named
    untrained, trained = (artist for artist in axes.collections if not isinstance(artist, ContourSet))
    np.testing.assert_allclose(untrained.get_offsets(), arrays["points_uniform"][1], rtol=1e-6)
    x, y = trained.get_offsets()[0]
    for picture, cells in ((axes.images[0], 64), (heat.images[0], 8)):
        left, right, bottom, top = picture.get_extent()
        column, row = int((x - left) / (right - left) * cells), int((y - top) / (bottom - top) * cells)
        assert np.asarray(picture.get_array())[row, column] > 0.9
        assert len(picture.axes.images) == 1  # no heatmap over the image
    vertices = next(artist for artist in axes.collections if isinstance(artist, ContourSet)).get_paths()[0].vertices
    # the outline runs along the block's edges: x from 40/64 to 48/64, y from 16/64 to 24/64
    np.testing.assert_allclose([*vertices.min(axis=0), *vertices.max(axis=0)], [0.625, 0.25, 0.75, 0.375], atol=1e-9)
    assert axes.get_ylim() == (1, 0)
    # Each number stands at its point, away from the other one; one colour scale for both cores: 0.5 is the full blue.
    assert [text.get_text() for text in other.texts] == ["+0.50"]
    assert {text.get_text(): text.xy for text in axes.texts} == {"-0.25": (5.5 / 8, 2.5 / 8), "+0.10": (1 / 8, 7 / 8)}
    (right_of, above), (left_of, below) = (text.xyann for text in axes.texts)
    assert (right_of > 0, above > 0, left_of < 0, below < 0) == (True,) * 4
    full, half, tenth = other.collections[1].get_facecolor()[0], *trained.get_facecolor()
    np.testing.assert_allclose(full[:3], [0, 0x72 / 255, 0xB2 / 255], atol=0.01)
    assert half[0] > half[2]  # against the reward: orange
    assert 0.75 < tenth[0] < tenth[2]  # for it: a pale blue, a fifth of the way from white


def test_training_is_an_animated_png_whose_still_picture_is_its_last_frame(showcase):
    shown, steps = showcase(size=32, cells=8, cores=2, k=1), np.array([0, 10, 40])
    frames = {name: shown[name][None].repeat(3, 0) for name in ("image", "region", "lesion", "label", "prob", "attention")}
    frames |= {"step": steps, "points": np.array([0.25, 0.5, 0.75])[:, None, None, None] + np.zeros((3, 2, 1, 2))}
    frames["attention"][0] = 1 / 64
    animation = training_animation(frames, arm="grpo")
    with Image.open(io.BytesIO(animation)) as picture:
        assert (picture.n_frames, picture.info["default_image"], picture.info["loop"]) == (4, True, 0)
        drawn, lengths = [], []
        for number in range(4):
            picture.seek(number)
            drawn.append(np.asarray(picture.convert("RGB")).astype(int))
            lengths.append(picture.info.get("duration"))
    assert lengths[1:] == [700, 700, 2500]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(still_of(animation))).convert("RGB")), drawn[0])
    np.testing.assert_array_equal(drawn[0], drawn[3])
    is_point = [np.abs(frame - [0xD5, 0x5E, 0x00]).max(-1) < 8 for frame in drawn[1:]]
    middles = [np.argwhere(mask[: len(mask) // 2, : mask.shape[1] // 2]).mean(0) for mask in is_point]  # the first core's point
    (down, right), again = (middles[1] - middles[0], middles[2] - middles[1])
    assert down > 20
    assert right > 20
    np.testing.assert_allclose((down, right), again, atol=1.5)  # a quarter of the image each time
    assert training_animation({}, arm="grpo") == b""


def test_a_uniform_policy_is_once_as_likely_as_a_uniform_policy():
    for attention in (np.full((2, 2), 0.25), np.array([[0.0, 0.5], [0.5, 0.0]])):
        found = times_uniform(attention)
        np.testing.assert_allclose(found[attention > 0], 0.0)
        assert np.isnan(found[attention == 0]).all()


def test_an_overlay_colours_the_pixels_of_its_heatmap_and_centres_its_points():
    none, heatmap = np.zeros((0, 2)), np.zeros((10, 20))
    image = np.arange(200, dtype=np.uint8).reshape(10, 20)
    np.testing.assert_array_equal(draw_overlay(image, heatmap, none), image[..., None].repeat(3, -1))
    heatmap[2:4, 15:18] = 1.0
    changed = (draw_overlay(np.full((10, 20), 100, np.uint8), heatmap, none) != 100).any(-1)
    np.testing.assert_array_equal(changed, heatmap > 0)
    # (30.5, 10.5) is the centre of the pixel in row 10, column 30.
    picture = draw_overlay(np.zeros((60, 80), np.uint8), np.zeros((60, 80)), np.array([[30.5, 10.5]]))
    rows, columns = np.nonzero(picture.any(-1))
    assert (rows.mean(), columns.mean()) == (10.0, 30.0)
    assert rows.max() - rows.min() == 4  # the smallest radius, 2
    for shape, small in (((640, 320, 3), (320, 160, 3)), ((20, 30, 3), (20, 30, 3))):
        assert shrink(np.zeros(shape, np.uint8)).shape == small


def test_the_sheet_of_predictions_has_a_panel_per_picture_with_its_score():
    rows = [{"core_id": f"$c{i}", "prob": 0.25, "prob_calibrated": [0.5, np.nan][i % 2], "outside": False} for i in range(4)]
    rows[2]["outside"] = True
    rows[3] |= {"prob": np.nan, "outside": True}
    outside, said = "outside the training images", "P(cancer) = 0.25"
    scores = f"{said}, calibrated 0.50", said, f"{said}, calibrated 0.50\n{outside}", f"no score: {outside}"
    titles = [axes.get_title() for axes in draw_sheet(rows, [np.zeros((4, 4, 3), np.uint8)] * 4).axes if axes.images]
    assert titles == [f"\\$c{number}\n{score}" for number, score in enumerate(scores)]


def files(name: str, *, first: bool = False, last: bool = False, **changes) -> HeatmapFiles:
    heatmap = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    values = {"overlay": np.zeros((3, 4, 3), np.uint8), "heatmap": heatmap, "volume": None, "spacing_mm": None}
    return HeatmapFiles(name=name, is_first=first, is_last=last, **values | changes)


def test_heatmaps_appear_complete_or_not_at_all_and_come_back_as_they_were(tmp_path: Path):
    dataset = HeatmapsDataset(filepath=str(tmp_path / "heatmaps"))
    with pytest.raises(DatasetError, match="must hold heatmaps, got nothing there; run the pipeline attention_predict"):
        dataset.load()
    with pytest.raises(DatasetError, match="must start with a first core"):
        dataset.save(files("late"))
    dataset.save(files("a", first=True, spacing_mm=(0.5, 0.25)))
    assert not (tmp_path / "heatmaps").exists()
    dataset.save(files("b", last=True, volume=nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32), np.eye(4))))
    loaded = dataset.load()
    assert list(loaded) == ["a", "b"]
    np.testing.assert_allclose(loaded["a"](), np.linspace(0, 1, 12).reshape(3, 4), atol=0.51 / 65535)  # half a level, by rounding
    assert nibabel.load(tmp_path / "heatmaps/b.nii.gz").shape == (2, 2, 2)
    with Image.open(tmp_path / "heatmaps/a.png") as picture:
        # 25.4 / 0.25 and 25.4 / 0.5 pixels per inch; PNG keeps whole pixels per metre.
        assert picture.info["dpi"] == pytest.approx((101.6, 50.8), abs=0.02)
    dataset.save(files("half", first=True))
    dataset.release()
    assert list(dataset.load()) == ["a", "b"]
    dataset.save(files("new", first=True, last=True))
    assert list(dataset.load()) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["heatmaps"]


def test_the_mask_that_a_prediction_reads_is_outlined_where_it_is_likelier_than_not(showcase):
    arrays = {name: array[:1].copy() for name, array in showcase(size=64, cells=8, k=3).items()}
    plain = image_sheet(arrays, arm="grpo")
    arrays["read_mask"] = np.full((1, 16, 16), 0.4)
    arrays["read_mask"][0, 4:8, 8:12] = 0.6  # of a quarter of the side: x from 0.5 to 0.75, y from 0.25 to 0.5
    figure = image_sheet(arrays, arm="grpo")
    before, after = ([artist for artist in one.axes[0].collections if isinstance(artist, ContourSet)] for one in (plain, figure))
    (corners,) = (path.vertices for path in after[len(before)].get_paths() if len(path.vertices))
    # Half a pixel, 1/32, is between the middle of the last one that is in and that of the first that is not.
    np.testing.assert_allclose([corners.min(0), corners.max(0)], [[0.5, 0.25], [0.75, 0.5]], atol=1e-9)
    legends = [[text.get_text() for text in shown.legends[0].get_texts()] for shown in (plain, figure)]
    assert [text for text in legends[1] if text not in legends[0]] == ["mask that the prediction reads"]


def test_the_prompted_mask_stands_in_the_place_of_the_heatmap(showcase):
    arrays = {name: array[:1].copy() for name, array in showcase(size=64, cells=8, k=3).items()}
    plain = image_sheet(arrays, arm="grpo")
    arrays["prompted_mask"] = np.zeros((1, 8, 8))
    arrays["prompted_mask"][0, 2, 5] = 1.0
    figure = image_sheet(arrays, arm="grpo")
    assert [one.axes[1].get_title() for one in (plain, figure)] == ["heatmap", "prompted mask"]
    assert [one.axes[-1].get_xlabel() for one in (plain, figure)] == ["heatmap", "prompted mask"]
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), arrays["prompted_mask"][0])
