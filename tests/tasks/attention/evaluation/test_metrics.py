import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score
from tiny_rows import NAN, ROWS

from grpo_pipeline.tasks.attention.evaluation.attention_metrics import add_prob_shift
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS, build_suite

ONES = np.ones((1, len(ROWS)))


def value(name, rows=ROWS):
    return METRICS[name](rows, np.ones((1, len(rows))))[0]


@pytest.mark.parametrize(
    ("name", "expected", "n"),
    [
        # positives .6 .5 .9 against negatives .2 .3 .7 .1 .4: .6 and .5 lose to .7 only -> (4 + 4 + 5) / 15
        ("auroc", 13 / 15, 8),
        # positives with involvement >= .4: b (.6) alone -> 4 / 5
        ("auroc_high_involvement", 4 / 5, 6),
        # grade >= 2: b .6, e .5 against the five negatives (d and g count as the rest) -> 8 / 10; f has no grade
        ("auroc_gg2", 8 / 10, 7),
        # grade >= 3: e .5 against the negatives and b (.6) -> 4 / 6
        ("auroc_gg3", 4 / 6, 7),
        # heatmap: positives .2 .5 .6, negatives .1 .3 .05 .25 (d has none): .2 beats .1 .05 -> (2 + 4 + 4) / 12
        ("heatmap_auroc", 10 / 12, 7),
        # patients: p1 .6 +, p2 .7 -, p3 .9 +, p4 .4 - -> .6 beats .4 only, .9 both -> 3 / 4
        ("auroc_patient", 3 / 4, 4),
        # positives .3 .6 .9, negatives .4 .35 .1 .5 (d has none): .3 beats .1 alone -> (1 + 4 + 4) / 12
        ("heatmap_top_auroc", 9 / 12, 7),
        ("pointing_hit", 0.5, 2),
        ("outlined_share", 0.25, 8),
        ("lesion_hit", 0.45, 2),
        # .45 / .15; the mean of the cores' own ratios would be (6 + 1.5) / 2 = 3.75
        ("lesion_hit_ratio", 3.0, 2),
        ("points_used", 18 / 8, 8),
        ("lesion_distance_mm", 2.75, 2),
        ("reward", -0.4, 8),
        ("prompt_sensitivity_samples", 0.1, 8),
        # (.04 + .16 + .09 + .49 + .25 + .01 + .01 + .16) / 8
        ("brier", 1.21 / 8, 8),
    ],
)
def test_golden(name, expected, n):
    assert value(name) == pytest.approx(expected, abs=1e-12)
    assert METRICS[name].count(ROWS) == n


def test_what_the_edges_of_a_definition_are():
    """An involvement at the threshold is high; a ratio to no coverage is undefined; a patient is in a resample as a whole."""
    at, below = (ROWS.assign(involvement=ROWS["involvement"].replace(0.7, value)) for value in (0.4, 0.39))
    assert value("auroc_high_involvement", at) == pytest.approx(4 / 5)
    assert np.isnan(value("auroc_high_involvement", below))
    assert np.isnan(value("lesion_hit_ratio", ROWS.assign(lesion_coverage=ROWS["lesion_coverage"] * 0)))
    weights = ONES.copy()
    weights[0, 0] = 2
    with pytest.raises(ValueError, match="the weights of one patient's cores must be equal"):
        METRICS["auroc_patient"](ROWS, weights)


RANKING = [name for name in METRICS if "auroc" in name or "sensitivity_at" in name or name == "average_precision"]


@pytest.mark.parametrize("name", RANKING)
def test_a_single_class_is_undefined_never_a_half(name):
    for label in (0, 1):
        assert np.isnan(value(name, ROWS.assign(label=label, grade_group=4.0 * label, involvement=0.9 * label)))


ABSENT = {
    "involvement": ["auroc_high_involvement"], "grade_group": ["auroc_gg2", "auroc_gg3"],
    "prob_std": ["prompt_sensitivity_samples"],
    "lesion_hit": ["lesion_hit", "lesion_hit_ratio"], "lesion_distance_mm": ["lesion_distance_mm"],
    "heatmap_prob": ["heatmap_auroc"],
}  # fmt: skip


@pytest.mark.parametrize("column", ABSENT)
def test_an_absent_column_is_undefined(column):
    assert np.isnan([value(name, ROWS.assign(**{column: NAN})) for name in ABSENT[column]]).all()


@pytest.mark.parametrize("name", [name for name in METRICS if name != "prompt_sensitivity_images"])
def test_weights_equal_repeated_patients(name):
    """Patient p1 drawn twice, p2 not at all: the weights say the same as a table with these rows."""
    counts = {"p1": 2, "p2": 0, "p3": 1, "p4": 1}
    weights = ROWS["patient_id"].map(counts).to_numpy(dtype=float)[None]
    drawn = [ROWS[ROWS["patient_id"] == p].assign(patient_id=f"{p}/{i}") for p, k in counts.items() for i in range(k)]
    assert METRICS[name](ROWS, weights)[0] == pytest.approx(value(name, pd.concat(drawn, ignore_index=True)), abs=1e-12)


def test_a_patient_is_one_unit():
    """A patient has the probability of its highest core, and weighs as much as one with a single core."""
    generator = np.random.default_rng(0)
    patient = np.repeat(np.arange(30), generator.integers(1, 9, 30))
    rows = pd.DataFrame({"patient_id": [f"p{i}" for i in patient], "prob": generator.random(len(patient))})
    rows = rows.assign(label=(generator.random(len(patient)) < 0.15).astype(int))
    per_patient = rows.groupby("patient_id").agg({"label": "max", "prob": "max"})
    expected = roc_auc_score(per_patient["label"], per_patient["prob"])
    assert value("auroc_patient", rows) == pytest.approx(expected, abs=1e-12)


def test_a_readers_score_is_compared_on_the_cores_that_have_one():
    """Oracle: scikit-learn on the scored cores alone, with each drawn patient as often as it is drawn."""
    rng = np.random.default_rng(1)
    n = 60
    label = rng.integers(0, 2, n)
    rows = pd.DataFrame(
        {"core_id": [f"c{i:02d}" for i in range(n)], "patient_id": [f"p{i // 3}" for i in range(n)], "label": label}
    )
    rows = rows.assign(
        prob=np.clip(0.3 * label + 0.7 * rng.random(n), 0, 1), reader_score=np.round(2 * label + 3 * rng.random(n))
    )
    rows.loc[rng.permutation(n)[:13], "reader_score"] = NAN
    suite = build_suite({}).for_names(rows.columns)
    counts = np.repeat(rng.integers(0, 3, n // 3), 3)
    drawn = rows.loc[rows.index.repeat(counts)].dropna(subset="reader_score")
    own, read = (roc_auc_score(drawn["label"], drawn[name]) for name in ("prob", "reader_score"))
    expected = {"reader_auroc": read, "auroc_where_read": own, "auroc_minus_reader": own - read}
    for name, number in expected.items():
        assert suite.metrics[name](rows, counts[None].astype(float))[0] == pytest.approx(number, abs=1e-12)
        assert suite.metrics[name].count(rows) == n - 13
    assert suite.metrics["auroc"].count(rows) == n
    assert suite.metrics["reader_auroc"].better == "none"  # the same for every arm
    assert not set(expected) & set(build_suite({}).for_names(ROWS.columns).metrics)
    assert set(expected) <= set(build_suite({}).for_names(["auroc_minus_reader"]).metrics)  # from a document's metrics


def test_prob_shift_compares_a_core_with_itself_whatever_the_row_order():
    policy = ROWS[["core_id", "rule", "prob"]]
    shuffled = policy.assign(rule="shuffled", prob=policy["prob"] + [0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    rows = add_prob_shift(pd.concat([shuffled.iloc[::-1], policy], ignore_index=True))
    np.testing.assert_allclose(rows.loc[rows["rule"] == "policy", "prob_shift"], 0.1)
    assert rows.loc[rows["rule"] == "shuffled", "prob_shift"].isna().all()
    assert METRICS["prompt_sensitivity_images"](rows, np.ones((1, 16)))[0] == pytest.approx(0.1)
    assert np.isnan(value("prompt_sensitivity_images", add_prob_shift(ROWS)))


def test_options_change_the_definitions():
    loose = build_suite({"high_involvement": 0.1}).metrics["auroc_high_involvement"]
    # b .6 and e .5 are high now -> 8 / 10
    assert loose(ROWS, ONES)[0] == pytest.approx(0.8)
    # two bins: below .5 -> sum y - p = -(.2 + .3 + .1 + .4) = -1; above -> 3 - 2.7 = .3 -> 1.3 / 8
    assert build_suite({"calibration_bins": 2}).metrics["ece"](ROWS, ONES)[0] == pytest.approx(1.3 / 8)


@pytest.mark.parametrize(
    "options", [{"calibration_bin": 5}, {"calibration_bins": 1}, {"high_involvement": 0.0}, {"high_involvement": 1.5}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        build_suite(options)


def test_sensitivities_are_those_at_their_own_specificity():
    """Above 0.3, three of five negatives below it, both positives are found; above 0.4, four of five, the higher one alone."""
    probs = [0.1, 0.2, 0.3, 0.4, 0.5, 0.35, 0.45]
    rows = pd.concat([ROWS.iloc[:1]] * 7, ignore_index=True).assign(prob=probs, label=[0] * 5 + [1] * 2)
    found = [METRICS[f"sensitivity_at_{level}_specificity"](rows, np.ones((1, 7)))[0] for level in (60, 80)]
    assert found == [1.0, 0.5]
