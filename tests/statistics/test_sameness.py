"""An output that is the same for every input is found, whatever its level, and one that lives is left alone."""

import numpy as np
import pytest

from grpo_pipeline.statistics.sameness import measure_sameness, sameness_sentences, shared_variance

OUTPUTS = {"heatmap": "heatmap", "prob": "probability", "greedy": "reply", "smiles": "molecule", "absent": "nothing"}
LATTICE = np.tile([[0.1, 0.3], [0.2, 0.7]], (8, 8))  # 4 pixels that every cell repeats


def test_the_share_is_that_of_the_mean_map_by_hand():
    """Two maps (0, 2) and (0, 4), about their means (-1, 1) and (-2, 2): |(-1.5, 1.5)|^2 / ((2 + 8) / 2) = 4.5 / 5."""
    assert shared_variance(np.array([[0.0, 2.0], [0.0, 4.0]])) == pytest.approx(0.9)
    assert shared_variance(np.array([[0.0, 2.0], [2.0, 0.0]])) == pytest.approx(0.0)
    # A thousandth of the largest value is no rounding, a millionth is.
    assert shared_variance(1.0 + np.array([[0.0, 2e-3], [2e-3, 0.0]])) == pytest.approx(0.0)
    assert shared_variance(1.0 + np.array([[0.0, 2e-6], [2e-6, 0.0]])) == 1.0


KINDS = ["constant", "flat at other levels", "lattice", "lattice at other levels", "lattice of other size"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_without_a_place_is_the_same_everywhere(kind):
    levels, rng = np.linspace(0.1, 0.8, 12)[:, None, None], np.random.default_rng(0)
    maps = {
        "constant": np.full((12, 16, 16), 0.3),
        "flat at other levels": np.broadcast_to(levels, (12, 16, 16)),
        "lattice": np.broadcast_to(LATTICE, (12, 16, 16)) + 0.01 * rng.standard_normal((12, 16, 16)),
        "lattice at other levels": LATTICE + levels,
        "lattice of other size": LATTICE * (1 + levels / 4),
    }[kind]
    found = measure_sameness({"heatmap": maps}, OUTPUTS)
    assert list(found) == ["heatmap"]
    assert (found["heatmap"]["of"], found["heatmap"]["n"], found["heatmap"]["is_same"]) == ("variance", 12, True)


@pytest.mark.parametrize("kind", ["noise", "a place of its own", "on a lattice"])
def test_a_map_that_lives_is_not(kind):
    rng = np.random.default_rng(1)
    rows, columns = np.mgrid[:16, :16]
    centres = rng.uniform(2, 14, (12, 2, 1, 1))
    blobs = np.exp(-((rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2) / 8)
    maps = {
        "noise": rng.random((12, 16, 16)),
        "a place of its own": blobs,
        "on a lattice": blobs + 0.3 * LATTICE,
    }[kind]
    entry = measure_sameness({"heatmap": maps}, OUTPUTS)["heatmap"]
    assert entry["share"] < 0.6
    assert not entry["is_same"]


def test_numbers_and_texts_are_the_same_where_they_do_not_move():
    prob = np.linspace(0.3, 0.7, 12)
    dead = {"prob": 0.44 + 0.001 * prob, "greedy": np.array(["yes"] * 12), "smiles": np.array([["C", "C"]] * 12)}
    alive = {"prob": prob, "greedy": np.array(["yes"] * 11 + ["no"]), "smiles": np.array([[f"C{i}", ""] for i in range(12)])}
    assert [entry["is_same"] for entry in measure_sameness(dead, OUTPUTS).values()] == [True] * 3
    found = measure_sameness(alive, OUTPUTS)
    assert [entry["is_same"] for entry in found.values()] == [False] * 3
    assert (found["reply"]["share"], found["molecule"]["share"]) == (11 / 12, 0.5)
    # mean^2 / (mean^2 + variance), the variance of 12 even steps over 0.4: 0.4^2 / 12 * 13 / 11
    assert found["probability"]["share"] == pytest.approx(0.25 / (0.25 + 0.16 / 12 * 13 / 11))


def test_each_kind_of_output_has_a_limit_of_its_own_that_is_the_same():
    texts = {"greedy": np.array(["yes"] * 19 + ["no"]), "smiles": np.array(["C"] * 18 + ["N", "O"])}
    found = measure_sameness(texts, OUTPUTS)  # 19 of 20 are exactly the limit of 0.95
    assert [(entry["share"], entry["is_same"]) for entry in found.values()] == [(0.95, True), (0.9, False)]
    # Numbers 1.0 and 1.2: 1.1^2 / (1.1^2 + 0.1^2) = 0.9918 is below 0.999; of maps 0.95 would be enough.
    # Maps (0, 2) and (0, 3), about their means (-1, 1) and (-1.5, 1.5): 1.25^2 / ((1 + 2.25) / 2) = 0.9615.
    found = measure_sameness({"prob": np.array([1.0, 1.2] * 2), "heatmap": np.array([[0.0, 2.0], [0.0, 3.0]] * 2)}, OUTPUTS)
    assert {name: (round(entry["share"], 4), entry["is_same"]) for name, entry in found.items()} == {
        "probability": (0.9918, False), "heatmap": (0.9615, True),
    }  # fmt: skip


def test_two_inputs_say_nothing_and_unknown_numbers_are_left_out():
    assert measure_sameness({"prob": np.array([0.5, 0.5])}, OUTPUTS) == {}
    # What is 0 everywhere, or known nowhere, is the same everywhere.
    for numbers in (np.zeros(3), np.full(3, np.nan)):
        assert measure_sameness({"prob": numbers}, OUTPUTS)["probability"] | {"of": ""} == {
            "share": 1.0, "of": "", "n": 3, "is_same": True,
        }  # fmt: skip
    entry = measure_sameness({"prob": np.array([0.2, np.nan, 0.8])}, OUTPUTS)["probability"]
    assert entry["share"] == pytest.approx(0.25 / 0.34)


def test_the_sentence_names_arm_output_and_share():
    dead = {"share": 0.9981, "of": "variance", "n": 12, "is_same": True}
    said = sameness_sentences({"control": {"heatmap": dead | {"is_same": False}}, "grpo": {"heatmap": dead}})
    assert said == [
        "grpo: the heatmap is the same everywhere: do not read it (99.8% of its variance is the same for all 12 inputs that are "
        "shown)."
    ]
