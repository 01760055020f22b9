"""Letters, callipers and ticks drawn into generated images are found and filled; images without any are left as they are."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter

from grpo_pipeline.tasks.attention.data.burnt_in import fill, find_burnt_in
from grpo_pipeline.tasks.attention.data.examples import build_examples
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.phantom.generate import generate_cores
from grpo_pipeline.tasks.attention.data.phantom.patients import PhantomParams
from grpo_pipeline.tasks.attention.inference.predictor import read_core

OWN = {"source": "manifest", "cores": 0, "complete": True}
SPLITS = {"train": ["c00", "c01", "c02", "c03"], "val": ["c04", "c05", "c06", "c07"], "test": ["c08", "c09", "c10", "c11"]}


@pytest.fixture(scope="module")
def clean() -> list[np.ndarray]:
    """Return phantom images of 256 pixels from every center, as a scanner shows them: grey levels, no marks."""
    params = PhantomParams(patients=8, image_size=256, cores_per_patient=(2, 2))
    return [core.image for core in generate_cores(params)]


def draw_text(image: np.ndarray) -> np.ndarray:
    picture = Image.fromarray(image)
    ImageDraw.Draw(picture).text((150, 120), "RT 9 LOQ", fill=235, font=ImageFont.load_default(size=12))
    return np.asarray(picture)


def draw_callipers(image: np.ndarray) -> np.ndarray:
    drawn = image.copy()
    for row, column in ((60, 80), (66, 170), (30, 120), (110, 125)):
        drawn[row - 4 : row + 5, column] = drawn[row, column - 4 : column + 5] = 235
    ends = np.linspace((60, 80), (66, 170), 31)[2:-2].round().astype(int)
    drawn[tuple(ends.T)] = 200
    return drawn


def draw_ticks(image: np.ndarray) -> np.ndarray:
    drawn = image.copy()
    drawn[np.arange(20, 230, 16)[:, None], np.arange(244, 251)] = 235
    return drawn


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(("draw", "recall"), [(draw_text, 0.9), (draw_callipers, 0.9), (draw_ticks, 0.6)])
def test_most_of_what_is_drawn_is_found_and_filled(clean, draw, recall, scale):
    found_shares, left = [], []
    for image in clean[::4]:
        shown, plain = (one.repeat(scale, 0).repeat(scale, 1) for one in (draw(image), image))
        marks = shown.astype(int) - plain > 40
        found = find_burnt_in(shown)
        found_shares.append(found.drawn[marks].mean())
        assert found.drawn.sum() <= 8 * marks.sum()  # strokes of one pixel, and their edges
        filled = fill(shown, found.drawn)
        np.testing.assert_array_equal(filled[~found.drawn], shown[~found.drawn])
        before, after = (np.abs(one.astype(int) - plain)[marks].mean() for one in (shown, filled))
        left.append(after / before)
    assert np.mean(found_shares) >= recall
    assert np.mean(left) <= 0.5


def test_images_without_marks_are_left_alone(clean):
    shares = [find_burnt_in(image).drawn.mean() for image in clean]
    assert max(shares) < 0.002
    assert np.median(shares) == 0
    flat = np.full((40, 60), 90, np.uint8)
    assert not find_burnt_in(flat).drawn.any()
    rng = np.random.default_rng(0)
    grain = gaussian_filter(rng.normal(size=(128, 128)), 1.0)
    bright = np.clip(180 + 40 * grain / grain.std(), 0, 255).astype(np.uint8)
    assert find_burnt_in(bright).drawn.mean() < 0.005


def test_a_filled_pixel_is_the_median_of_those_around_that_are_not_drawn():
    image = np.arange(100, dtype=np.uint8).reshape(10, 10)
    drawn = np.zeros((10, 10), bool)
    drawn[5, 5] = drawn[5, 6] = True
    around = np.ma.array(image, mask=drawn)[2:9, 2:9]
    expected = image.copy()
    expected[5, 5] = round(float(np.ma.median(around)))
    expected[5, 6] = round(float(np.ma.median(np.ma.array(image, mask=drawn)[2:9, 3:10])))
    np.testing.assert_array_equal(fill(image, drawn), expected)
    assert not fill(image, np.ones((10, 10), bool)).any()  # nothing is left to fill from: black


def test_points_may_not_fall_on_marks_and_the_report_counts_them(data_set, data_params, clean):
    for number, image in enumerate(clean[:12]):
        shown = image if number % 2 else draw_callipers(draw_text(image))
        data_set.save(f"images/c{number:02d}.png", shown)
        for name in ("region", "needle"):
            data_set.save(f"{name}/c{number:02d}.png", np.ones((256, 256), bool))
    for row in data_set.rows:
        row["lesion_mask"] = ""
    kept, masked = (data_params(image_size=128, burnt_in=how) for how in ("keep", "mask"))
    raw = data_set.open()
    checked, _, report = check_manifest(raw, OWN, masked)
    assert report["burnt_in"]["images"] == 12
    assert report["burnt_in"]["with_marks"] >= 6
    assert 0.003 < report["burnt_in"]["median_share"] <= report["burnt_in"]["highest_share"] < 0.05
    plain, plain_report = (check_manifest(raw, OWN, kept)[i] for i in (0, 2))
    assert "burnt_in" not in plain_report
    before = build_examples(raw, plain, SPLITS, kept)[0]
    after = build_examples(raw, checked, SPLITS, masked)[0]
    assert before.region.all()
    blocked = ~after.region[0]
    assert 0.005 < blocked.mean() < 0.1
    assert blocked[30, 40]  # the first calliper's centre, at half its pixels
    np.testing.assert_array_equal(after.bag, after.region)
    changed = after.images[0] != before.images[0]
    assert changed[30, 40]
    assert after.images[0][changed].mean() < before.images[0][changed].mean()
    # An exported model prepares an image in the same way.
    model = masked.for_model(image_size=128, clinical=())
    row = checked.iloc[0].to_dict() | {"lesion_mask": ""}
    np.testing.assert_array_equal(read_core(raw, row, model)[0], after.images[0])
