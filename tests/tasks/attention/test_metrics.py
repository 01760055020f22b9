import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    hamming_loss,
    roc_auc_score,
)

from grpo_pipeline.statistics.alignment import split_rules
from grpo_pipeline.tasks.attention.metrics import (
    METRICS,
    add_prob_shift,
    auroc_sentence,
    build_suite,
    combine_frames,
    lesion_sentence,
    oracle_sentences,
    reader_sentences,
    reward_sentence,
    sensitivity_sentence,
)

NAN = np.nan
ROWS = pd.DataFrame(
    {
        "core_id": list("abcdefgh"),
        "patient_id": ["p1", "p1", "p2", "p2", "p3", "p3", "p4", "p4"],
        "label": [0, 1, 0, 0, 1, 1, 0, 0],
        "involvement": [0.0, 0.7, 0.0, NAN, 0.2, NAN, 0.0, 0.0],
        "grade_group": [0.0, 2.0, 0.0, NAN, 3.0, NAN, 1.0, 0.0],
        "rule": "policy",
        "prob": [0.2, 0.6, 0.3, 0.7, 0.5, 0.9, 0.1, 0.4],
        "heatmap_prob": [0.1, 0.2, 0.3, NAN, 0.5, 0.6, 0.05, 0.25],
        "heatmap_top": [0.4, 0.3, 0.35, NAN, 0.6, 0.9, 0.1, 0.5],
        "pointing_hit": [NAN, 1.0, NAN, NAN, 0.0, NAN, NAN, NAN],
        "outlined_share": 0.25,
        "prob_std": [0.1, 0.2, 0.1, 0.0, 0.1, 0.1, 0.1, 0.1],
        "reward": [-0.5, -0.1, -0.3, -0.3, -0.2, -0.6, -0.4, -0.8],
        "reward_class": -0.2,
        "reward_heatmap": -0.4,
        "lesion_hit": [NAN, 0.6, NAN, NAN, 0.3, NAN, NAN, NAN],
        "lesion_coverage": [NAN, 0.1, NAN, NAN, 0.2, NAN, NAN, NAN],
        "points_used": [3.0, 2.0, 3.0, 1.0, 3.0, 2.5, 3.0, 0.5],
        "lesion_distance_mm": [NAN, 1.5, NAN, NAN, 4.0, NAN, NAN, NAN],
    }
).assign(prob_shift=NAN)
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


@pytest.mark.parametrize("ordinal", [False, True])
def test_classes_are_scored_as_scikit_learn_scores_them(ordinal):
    rng, names = np.random.default_rng(5), ["normal", "benign", "malignant"]
    n = 80
    right = rng.integers(0, 3, n)
    probs = rng.dirichlet(np.ones(3), n) + 0.6 * np.eye(3)[right]
    probs /= probs.sum(1, keepdims=True)
    rows = pd.concat([ROWS.iloc[:1]] * n, ignore_index=True).assign(
        core_id=[f"c{i}" for i in range(n)],
        patient_id=[f"p{i // 3}" for i in range(n)],
        **{"class": right},
        **{f"prob_{name}": probs[:, c] for c, name in enumerate(names)},
        **({"expected_class": probs @ np.arange(3)} if ordinal else {}),
    )
    counts = rng.integers(0, 3, n)
    drawn = np.repeat(np.arange(n), counts)
    true, chosen = right[drawn], probs[drawn].argmax(1)
    expected = {f"auroc_class_{name}": roc_auc_score(true == c, probs[drawn, c]) for c, name in enumerate(names)}
    expected["auroc_macro"] = roc_auc_score(true, probs[drawn], multi_class="ovr")
    expected |= {"accuracy": accuracy_score(true, chosen), "balanced_accuracy": balanced_accuracy_score(true, chosen)}
    if ordinal:
        expected["kappa_quadratic"] = cohen_kappa_score(true, chosen, weights="quadratic")
    found = dict(build_suite({}).for_names(rows.columns).metrics)
    for name, wanted in expected.items():
        assert found[name](rows, counts[None].astype(float))[0] == pytest.approx(wanted, abs=1e-12), name
        assert found[name].count(rows.assign(prob_benign=[NAN] * 7 + [0.5] * (n - 7))) == n - 7
    assert set(found) - set(METRICS) == set(expected)
    # A later reader of the document knows them by its metrics, in whatever order these stand there.
    again = build_suite({}).for_names(sorted(expected)).metrics
    assert set(again) - set(METRICS) == set(expected)
    assert again["accuracy"](rows, np.ones((1, n)))[0] == accuracy_score(right, probs.argmax(1))
    alone = rows[rows["class"] != 1]
    undefined = {name for name in expected if np.isnan(found[name](alone, np.ones((1, len(alone))))[0])}
    assert undefined == {"auroc_class_benign", "auroc_macro", "balanced_accuracy"}


def test_findings_are_scored_as_scikit_learn_scores_them():
    rng, names, n = np.random.default_rng(6), ["cyst", "calcified", "mass"], 90
    truth = rng.random((n, 3)) < (0.2, 0.6, 0.4)
    probs = (0.4 * rng.random((n, 3)) + 0.5 * rng.random((n, 3)) * truth).clip(0, 1)
    rows = pd.concat([ROWS.iloc[:1]] * n, ignore_index=True).assign(
        core_id=[f"c{i}" for i in range(n)],
        findings=truth @ (1, 2, 4),
        **{f"prob_{name}": probs[:, c] for c, name in enumerate(names)},
    )
    counts = rng.integers(0, 3, n)
    drawn = np.repeat(np.arange(n), counts)
    true, said = truth[drawn], probs[drawn]
    constant = np.broadcast_to(true.mean(0), true.shape)
    sets = [tuple(one) for one in true.tolist()]
    commonest = np.broadcast_to(max(set(sets), key=sets.count), true.shape)
    expected = {f"auroc_finding_{name}": roc_auc_score(true[:, c], said[:, c]) for c, name in enumerate(names)}
    expected |= {
        f"average_precision_finding_{name}": average_precision_score(true[:, c], said[:, c]) for c, name in enumerate(names)
    }
    expected |= {
        "auroc_macro": roc_auc_score(true, said, average="macro"),
        "average_precision_macro": average_precision_score(true, said, average="macro"),
        "average_precision_macro_constant": average_precision_score(true, constant, average="macro"),
        "exact_match": accuracy_score(true, said > 0.5),
        "exact_match_constant": accuracy_score(true, commonest),
        "wrong_findings": 3 * hamming_loss(true, said > 0.5),
        "wrong_findings_constant": 3 * hamming_loss(true, constant > 0.5),
    }
    assert 0.1 < expected["exact_match_constant"] < expected["exact_match"] < 0.9
    found = dict(build_suite({}).for_names(rows.columns).metrics)
    assert set(found) - set(METRICS) == set(expected)  # nothing of exclusive classes: accuracy, kappa
    for name, wanted in expected.items():
        assert found[name](rows, counts[None].astype(float))[0] == pytest.approx(wanted, abs=1e-12), name
        assert found[name].count(rows.assign(prob_mass=[NAN] * 7 + [0.5] * (n - 7))) == n - 7
    again = build_suite({}).for_names(sorted(expected)).metrics
    assert set(again) - set(METRICS) == set(expected)
    assert again["exact_match"](rows, np.ones((1, n)))[0] == accuracy_score(truth, probs > 0.5)
    alone = rows[~truth[:, 2]]
    undefined = {name for name in expected if np.isnan(found[name](alone, np.ones((1, len(alone))))[0])}
    assert undefined == {"auroc_finding_mass", "average_precision_finding_mass", "auroc_macro", "average_precision_macro"}


def test_the_reader_stands_in_the_summary():
    entry = {"value": -0.05, "ci95": [-0.09, -0.01], "n": 47, "reason": None}
    metrics = {"auroc_minus_reader": entry, "reader_auroc": {**entry, "value": 0.9}}
    document = {"n": {"examples": 60}, "arms": {"grpo": {"metrics": metrics}, "other": {"metrics": {}}}}
    assert reader_sentences(document) == [
        "grpo: AUROC minus that of the reader's score, 0.900, on 47 cores (13 without a score are left out of this comparison "
        "alone): -0.050 (95% interval -0.090 to -0.010): worse than the reader."
    ]
    entry.update(ci95=None, reason="one class")
    document["n"]["examples"] = 47
    assert reader_sentences(document) == ["grpo: AUROC beside the reader's score on 47 cores: no statement (one class)."]


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


NO_LESION = {"value": None, "ci95": None, "n": 0, "reason": "undefined: needs a core with a lesion outline"}


@pytest.mark.parametrize(
    ("judged", "worse", "none", "better"),
    [
        (reward_sentence, "its points are worse than chance.", "no difference shown.", "its points are better than chance."),
        (lesion_sentence, "avoids lesions.", "no difference shown.", "finds lesions."),
    ],
)
def test_points_are_judged_by_the_interval(judged, worse, none, better):
    """The reward beside 0, the ratio of lesions beside 1."""
    one = float(judged is lesion_sentence)
    for interval, ending in (((-0.2, -0.01), worse), ((-0.01, 0.2), none), ((0.01, 0.2), better)):
        entry = {"value": one + 5.1, "ci95": [one + end for end in interval], "n": 9}
        sentence = judged("grpo", entry)
        assert sentence.endswith(ending)
        assert "6.1 times as often as uniform points" in sentence or not one
    sentence = auroc_sentence("grpo", {"value": 0.01, "ci95": [-0.02, 0.04]}, control="supervised")
    assert sentence == "grpo: AUROC difference to supervised +0.010 (95% interval -0.020 to +0.040): no difference shown."


def test_what_is_undefined_is_not_claimed():
    said = [sentence("grpo", NO_LESION) for sentence in (lesion_sentence, sensitivity_sentence, reward_sentence)]
    for sentence in (*said, auroc_sentence("grpo", NO_LESION, control="supervised")):
        assert "no statement (undefined: needs a core with a lesion outline)" in sentence
    for baselines in ({}, {"oracle": {"metrics": {"auroc": NO_LESION}}}):
        assert oracle_sentences({"baselines": baselines, "baseline_arm": "grpo"}) == []


def frames_of_cores():
    """Return rows of four cores with 1 to 4 frames under two rules, each number another one."""
    rng, parts = np.random.default_rng(0), []
    for rule in ("policy", "uniform"):
        for core, count in zip("badc", (3, 1, 4, 2), strict=True):
            facts = ROWS[ROWS["core_id"] == core].drop(columns="prob_shift").iloc[[0] * count]
            numbers = {name: rng.random(count) for name in ("prob", "heatmap_prob", "heatmap_top", "reward", "lesion_hit")}
            numbers["lesion_hit"][:1] = NAN
            named = {"rule": rule, "frame": [str(i) for i in range(count)], "reader_score": rng.integers(1, 6, count) * 1.0}
            classes = {"class": "abcd".index(core), "prob_x": numbers["prob"], "prob_y": 1 - numbers["prob"]}
            parts.append(facts.assign(**numbers, **named, **classes))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_frames_become_one_row_of_their_core(how):
    rows = frames_of_cores().assign(over_frames=how, over_cores="max")
    found = combine_frames(rows.sample(frac=1, random_state=0)).set_index(["rule", "core_id"])
    assert len(found) == 8
    for (rule, core), row in found.iterrows():
        own = rows[(rows["rule"] == rule) & (rows["core_id"] == core)]
        for name in ("prob", "heatmap_prob", "heatmap_top"):
            assert row[name] == pytest.approx(getattr(np, how)(own[name].to_numpy())), name
        assert row["reward"] == pytest.approx(np.mean(own["reward"]))
        assert row["lesion_hit"] == pytest.approx(own["lesion_hit"].mean(), nan_ok=True)
        assert row["reader_score"] == own["reader_score"].max()
        assert row["class"] == own["class"].iloc[0]
        assert (row["prob_x"], row["prob_y"]) == (pytest.approx(row["prob"]), pytest.approx(1 - row["prob"]))
        assert (row["frames"], row["patient_id"], row["label"]) == (len(own), own["patient_id"].iloc[0], own["label"].iloc[0])
    assert combine_frames(ROWS) is ROWS
    findings = combine_frames(rows.rename(columns={"class": "findings"})).set_index(["rule", "core_id"])
    own = rows.groupby(["rule", "core_id"])
    for name in ("prob_x", "prob_y"):  # of several findings each by the rule
        assert findings[name].to_dict() == pytest.approx(own[name].agg(how).to_dict())
    assert findings["findings"].to_dict() == own["class"].first().to_dict()


def test_a_frame_without_a_probability_leaves_its_core_without_one():
    rows = frames_of_cores().assign(over_frames="mean", over_cores="max")
    rows.loc[1, "prob"] = NAN
    with pytest.raises(ValueError, match="prob in the predictions of grpo must be finite, got nan for core 'b'"):
        split_rules(rows, build_suite({}), arm="grpo", cluster="patient_id")


def test_a_comparison_counts_a_core_once_and_follows_the_rules_that_its_rows_name():
    """The same cores with one frame and with three of the same mean: every number but the largest is the same."""
    # Off the edges of the calibration bins, on which rounding decides.
    once = ROWS.drop(columns="prob_shift").assign(prob=ROWS["prob"] + 0.013, reader_score=[1, 4, 2, 3, 4, 5, 1, 2])
    spread = pd.concat([once.assign(frame=str(i), prob=once["prob"] + 0.05 * (i - 1)) for i in range(3)])
    metrics = build_suite({}).for_names(once.columns).metrics
    tables = {
        how: split_rules(rows, build_suite({}), arm="grpo", cluster="patient_id")["policy"]
        for how, rows in {
            "one": once,
            "mean": spread.assign(over_frames="mean", over_cores="max"),
            "max": spread.assign(over_frames="max", over_cores="max"),
            "mean of cores": spread.assign(over_frames="mean", over_cores="mean"),
        }.items()
    }
    values = {how: {name: m(rows, ONES)[0] for name, m in metrics.items()} for how, rows in tables.items()}
    for name in metrics:
        assert values["mean"][name] == pytest.approx(values["one"][name], nan_ok=True), name
        assert metrics[name].count(tables["mean"]) == metrics[name].count(tables["one"]), name
    assert values["max"]["brier"] == pytest.approx(((once["prob"] + 0.05 - once["label"]) ** 2).mean())
    # Patients p1 .4 (cancer), p2 .5, p3 .7 (cancer), p4 .25: 3 of 4 pairs; by the highest .6, .7, .9, .4: 3 of 4 as well.
    assert values["mean of cores"]["auroc_patient"] == 3 / 4
    flipped = tables["mean of cores"].assign(prob=[0.2, 0.6, 0.0, 0.7, 0.5, 0.9, 0.1, 0.4])
    assert metrics["auroc_patient"](flipped, ONES)[0] == 1
