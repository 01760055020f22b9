from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from grpo_pipeline.tasks.attention.data.phantom import generate
from grpo_pipeline.tasks.attention.data.phantom.chunks import core_files, empty_chunk, phantom_chunks
from grpo_pipeline.tasks.attention.data.phantom.generate import COLUMNS, count_cores, draw_echo, draw_scanner, generate_cores
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams

ROOT = Path(__file__).resolve().parents[5]
SMALL = PhantomParams(patients=30, image_size=64)


@pytest.fixture(scope="module")
def cores():
    return list(generate_cores(SMALL))


def same(left, right):
    arrays = ("image", "region", "needle", "lesion")
    equal = all(np.array_equal(getattr(left, name), getattr(right, name)) for name in arrays)
    return equal and str(left.row) == str(right.row)  # as text: NaN equals NaN


def test_a_core_depends_on_the_seed_its_own_patient_and_its_number_only(cores):
    fewer = list(generate_cores(SMALL.model_copy(update={"patients": 5})))
    assert len(fewer) >= 5 * 6
    assert all(map(same, cores, fewer))
    other = next(generate_cores(SMALL.model_copy(update={"seed": 1})))
    assert not np.array_equal(other.image, cores[0].image)
    # Harder lesions leave shapes, patients and benign cores as they are.
    harder = generate_cores(SMALL.model_copy(update={"patients": 10, "conspicuity": (0.0,) * 5}))
    for core, hard in zip(cores, harder, strict=False):
        assert same(replace(core, image=hard.image), hard)
        assert np.array_equal(core.image, hard.image) == (core.conspicuity == 0)


def test_rows_and_anatomy(cores):
    assert count_cores(SMALL) == len(cores) == len({core.row["core_id"] for core in cores})
    assert {tuple(core.row) for core in cores} == {COLUMNS}
    assert {core.row["center"] for core in cores} == {"center_a", "center_b", "center_c", "center_d"}
    scanners = [draw_scanner(SMALL, center) for center in range(4)]
    assert len({scanner.gain for scanner in scanners}) == 4
    errors, on, off = [], [], []
    for core in cores:
        row, bag = core.row, core.needle & core.region
        assert row["label"] == int(core.lesion.any()) == int(row["grade_group"] > 0) == int(row["involvement"] > 0)
        named = [row[name] for name in ("image", "region_mask", "bag_mask", "lesion_mask") if row[name]]
        files = core_files(core)
        assert list(files) == named
        assert bool(row["lesion_mask"]) == core.lesion.any()
        np.testing.assert_array_equal(files[row["bag_mask"]], core.needle)
        assert core.image.shape == core.region.shape == (64, 64)
        assert core.image.dtype == np.uint8
        assert 0.4 <= core.region.mean() <= 0.7
        assert bag.sum() >= 40
        on.append(core.image[bag].mean())
        off.append(core.image[core.region & ~core.needle].mean())
        if core.lesion.any():
            assert not (core.lesion & ~core.region).any()
            assert 0.079 <= core.lesion.sum() / core.region.sum() <= 0.121
            assert (core.lesion & core.needle).any()
            errors.append(row["involvement"] - core.lesion[bag].mean())
        assert row["grade_group"] > 0 or core.conspicuity == 0.0
    # Reported in steps of 0.05 with an error of 0.05, at least 0.05.
    assert np.max(np.abs(errors)) < 0.25
    assert abs(np.mean(errors)) < 0.03
    assert np.std(errors) > 0.03
    involved = {core.row["involvement"] for core in cores} - {0.0}
    assert min(involved) >= 0.05
    assert max(abs(20 * value - round(20 * value)) for value in involved) < 1e-9
    assert np.mean(on) > np.mean(off) + 3  # the needle is a little brighter than the tissue beside it
    mean = [np.mean([c.conspicuity for c in cores if c.row["grade_group"] in grades]) for grades in ((1,), (2, 3), (4, 5))]
    assert mean[0] < mean[1] < mean[2]


def test_brightness_and_needle_say_nothing_about_cancer(cores):
    """Their AUROC must stay near one half, or a lesion could be found without its texture."""
    label = [core.row["label"] for core in cores]
    for value in ([core.image[core.region].mean() for core in cores], [(core.needle & core.region).sum() for core in cores]):
        assert 0.35 < roc_auc_score(label, value) < 0.65


def test_powers_of_the_two_tissues_add_up(monkeypatch: pytest.MonkeyPatch):
    """Without slow changes of brightness, a half-changed lesion is half as much darker as cancer is, 1 dB, and no more."""
    monkeypatch.setattr(generate, "draw_level", lambda *_, **__: 0.0)
    params = PhantomParams(image_size=512)
    lesion = np.zeros((512, 512), bool)
    lesion[:, :256] = True
    echo = draw_echo(np.random.default_rng(0), np.zeros((512, 512)), lesion, conspicuity=0.5, blur=1.0, params=params)
    power = np.abs(echo) ** 2
    assert power[lesion].mean() / power[~lesion].mean() == pytest.approx(10 ** (-0.5 / 10), abs=0.05)


def test_bad_parameter_is_refused():
    for changes, message in (
        ({"patient": 3}, "patient\n.*Extra inputs"),
        ({"patients": 0}, "patients\n"),
        ({"cores_per_patient": (8, 6)}, r"attention.phantom.cores_per_patient must be \[smallest, largest\], got \[8, 6\]"),
        ({"lesion_share": (0.2, 1.4)}, "lesion_share"),
    ):
        with pytest.raises(ValueError, match=message):
            PhantomParams.model_validate(changes)


@pytest.mark.parametrize(("chunk_size", "sizes"), [(1, [1] * 6), (4, [4, 2]), (6, [6]), (100, [6])])
def test_chunks_cover_the_cores_once_and_mark_first_and_last(monkeypatch, cores, chunk_size, sizes):
    monkeypatch.setattr("grpo_pipeline.tasks.attention.data.phantom.chunks.CORES_AT_ONCE", chunk_size)
    chunks = list(phantom_chunks(cores[:6]))
    assert [len(chunk.rows) for chunk in chunks] == sizes
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (len(sizes) - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(sizes) - 1) + [True]
    assert [name for chunk in chunks for name in chunk.rows["core_id"]] == [core.row["core_id"] for core in cores[:6]]
    empty = empty_chunk()
    assert (empty.files, len(empty.rows), empty.is_first, empty.is_last, empty.source) == ({}, 0, True, True, "manifest")


def test_all_patients_of_a_center_are_scanned_alike(monkeypatch: pytest.MonkeyPatch):
    """Five patients of two centers, a, b, a, b, a: two scanners, which are those of the centers' numbers."""
    params = SMALL.model_copy(update={"patients": 5, "centers": 2})
    drawn = []
    monkeypatch.setattr(
        generate, "draw_core", lambda rng, patient, number, **given: drawn.append((patient.center, given["scanner"]))
    )
    list(generate_cores(params))
    assert set(drawn) == {("center_a", draw_scanner(params, 0)), ("center_b", draw_scanner(params, 1))}
