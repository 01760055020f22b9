from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from grpo_pipeline.tasks.attention.data.phantom.generate import (
    COLUMNS,
    core_files,
    count_cores,
    draw_echo,
    draw_involvement,
    draw_scanner,
    empty_chunk,
    generate_cores,
    needle_level,
    phantom_chunks,
)
from grpo_pipeline.tasks.attention.data.phantom.patients import PhantomParams
from grpo_pipeline.tasks.attention.data.phantom.shapes import Needle, pixel_grid

ROOT = Path(__file__).resolve().parents[5]
SMALL = PhantomParams(patients=40, image_size=64)


@pytest.fixture(scope="module")
def cores():
    return list(generate_cores(SMALL))


def same(left, right):
    arrays = ("image", "region", "needle", "lesion")
    equal = all(np.array_equal(getattr(left, name), getattr(right, name)) for name in arrays)
    return equal and str(left.row) == str(right.row)  # as text: NaN equals NaN


def test_seed_decides_everything(cores):
    again = list(generate_cores(SMALL))
    assert all(map(same, cores, again))
    other = next(generate_cores(SMALL.model_copy(update={"seed": 1})))
    assert not np.array_equal(other.image, cores[0].image)


def test_a_core_depends_on_its_own_patient_and_number_only(cores):
    fewer = list(generate_cores(SMALL.model_copy(update={"patients": 5, "chunk_size": 3})))
    assert all(map(same, cores, fewer))


def test_harder_lesions_leave_shapes_patients_and_benign_cores_unchanged(cores):
    harder = list(generate_cores(SMALL.model_copy(update={"conspicuity": (0.0,) * 5, "conspicuity_spread": 0.0})))
    for core, hard in zip(cores, harder, strict=True):
        np.testing.assert_array_equal(core.lesion, hard.lesion)
        np.testing.assert_array_equal(core.needle, hard.needle)
        assert str(core.row) == str(hard.row)
        assert np.array_equal(core.image, hard.image) == (core.conspicuity == 0)


def test_rows_and_their_number(cores):
    assert count_cores(SMALL) == len(cores)
    assert {tuple(core.row) for core in cores} == {COLUMNS}
    assert len({core.row["core_id"] for core in cores}) == len(cores)
    assert {core.row["center"] for core in cores} == {"center_a", "center_b", "center_c", "center_d"}
    for core in cores:
        assert core.row["label"] == int(core.lesion.any()) == int(core.row["grade_group"] > 0) == int(core.row["involvement"] > 0)
        assert bool(core.row["lesion_mask"]) == core.lesion.any()


def test_anatomy(cores):
    for core in cores:
        assert core.image.shape == core.region.shape == (64, 64)
        assert core.image.dtype == np.uint8
        assert 0.4 <= core.region.mean() <= 0.7
        assert (core.needle & core.region).sum() >= 40
        if core.lesion.any():
            assert not (core.lesion & ~core.region).any()
            assert 0.079 <= core.lesion.sum() / core.region.sum() <= 0.121
            assert (core.lesion & core.needle).any()


def test_involvement_is_the_share_of_the_needle_in_the_lesion(cores):
    """Reported in steps of 0.05 with an error of 0.05: naive counting agrees within five errors, and on average."""
    errors = []
    for core in cores:
        if core.lesion.any():
            bag = [(y, x) for y in range(64) for x in range(64) if core.needle[y, x] and core.region[y, x]]
            share = sum(core.lesion[y, x] for y, x in bag) / len(bag)
            errors.append(core.row["involvement"] - share)
    assert np.max(np.abs(errors)) < 0.25
    assert abs(np.mean(errors)) < 0.03


def test_involvement_of_cancer_is_never_zero():
    bag, lesion = np.ones((10, 10), bool), np.zeros((10, 10), bool)
    assert draw_involvement(np.random.default_rng(0), bag, lesion) == 0.05


def test_needle_is_brightest_on_its_axis_and_dark_beyond_its_ends():
    needle = Needle(0.5, 0.5, 0.0, 0.5, 0.08)
    level = needle_level(np.random.default_rng(0), needle, pixel_grid(101))
    assert level[50, 50] > level[47, 50] > 0.4
    assert level[40, 50] < 1e-9
    assert level[50, 95] < 0.01


def test_brightness_and_needle_say_nothing_about_cancer(cores):
    """Mean grey level of the region: its AUROC must stay near one half, or a lesion could be found without its texture."""
    label = [core.row["label"] for core in cores]
    grey = [core.image[core.region].mean() for core in cores]
    assert 0.35 < roc_auc_score(label, grey) < 0.65
    label = [core.row["label"] for core in cores]
    length = [(core.needle & core.region).sum() for core in cores]
    assert 0.35 < roc_auc_score(label, length) < 0.65


def test_powers_of_the_two_tissues_add_up():
    """Without slow changes of brightness, a half-changed lesion echoes as strongly as the tissue around it."""
    flat = {"cancer_level": 0.0, "attenuation": (0.0, 0.0), "noise_floor": -200.0, "density_jitter": 1e-9}
    params = PhantomParams.model_validate({"image_size": 512, "lookalikes": 0, "shadow_share": 0.0, "speckle": flat})
    lesion = np.zeros((512, 512), bool)
    lesion[:, :256] = True
    echo = draw_echo(np.random.default_rng(0), np.zeros((512, 512)), lesion, conspicuity=0.5, blur=1.0, params=params)
    power = np.abs(echo) ** 2
    assert power[lesion].mean() / power[~lesion].mean() == pytest.approx(1.0, abs=0.05)


def test_centers_differ_in_grey_levels():
    scanners = [draw_scanner(SMALL, center) for center in range(4)]
    assert len({scanner.gain for scanner in scanners}) == 4
    assert scanners[0] == draw_scanner(SMALL, 0)


def test_every_patient_with_cancer_has_a_core_with_cancer_and_conspicuity_rises_with_grade():
    params = PhantomParams(patients=150, image_size=32)
    cores = list(generate_cores(params))
    mean = [np.mean([c.conspicuity for c in cores if c.row["grade_group"] in grades]) for grades in ((1,), (2, 3), (4, 5))]
    assert mean[0] < mean[1] < mean[2]
    assert {core.conspicuity for core in cores if core.row["grade_group"] == 0} == {0.0}


def test_committed_parameters_are_the_documented_defaults():
    committed = yaml.safe_load((ROOT / "conf/base/parameters/attention_data.yml").read_text())["attention"]["phantom"]
    assert PhantomParams.model_validate(committed) == PhantomParams()
    assert set(committed) == set(PhantomParams.model_fields) - {"speckle"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patient": 3}, "patient\n.*Extra inputs"),
        ({"patients": 0}, "patients\n"),
        ({"cores_per_patient": (8, 6)}, r"attention.phantom.cores_per_patient must be \[smallest, largest\], got \[8, 6\]"),
        ({"lesion_share": (0.2, 1.4)}, "lesion_share"),
        ({"speckle": {"grain": 1}}, r"speckle\.grain\n.*Extra inputs"),
    ],
)
def test_bad_parameter_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PhantomParams.model_validate(changes)


CORES = list(generate_cores(PhantomParams(patients=3, cores_per_patient=(2, 2), image_size=32)))


@pytest.mark.parametrize(("chunk_size", "sizes"), [(1, [1] * 6), (3, [3, 3]), (4, [4, 2]), (6, [6]), (100, [6])])
def test_chunks_cover_the_cores_once_and_mark_first_and_last(chunk_size, sizes):
    chunks = list(phantom_chunks(CORES, chunk_size=chunk_size))
    assert [len(chunk.rows) for chunk in chunks] == sizes
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (len(sizes) - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(sizes) - 1) + [True]
    assert [name for chunk in chunks for name in chunk.rows["core_id"]] == [core.row["core_id"] for core in CORES]


def test_files_are_those_of_the_row():
    for core in CORES:
        files = core_files(core)
        named = [core.row[name] for name in ("image", "region_mask", "bag_mask", "lesion_mask") if core.row[name]]
        assert list(files) == named
        np.testing.assert_array_equal(files[core.row["bag_mask"]], core.needle)


def test_empty_chunk_is_first_and_last_of_a_users_own_data():
    chunk = empty_chunk()
    assert (chunk.files, len(chunk.rows), chunk.is_first, chunk.is_last, chunk.source) == ({}, 0, True, True, "manifest")
