"""The document of a grid whose predictions are made up, against loops over patients and seeds."""

import copy
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from tiny import CONF, SERIAL
from tiny_attention import make_examples
from tiny_folds import EVALUATION
from tiny_grid import SHORT, Memory, tiny_parameters, tiny_plan

from grpo_pipeline.pipelines.evaluation.budget import Budget
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.compare import nodes, tables
from grpo_pipeline.pipelines.experiments.compare.document import budgets_of, compare_trials, describe_correction
from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, score_rows
from grpo_pipeline.pipelines.experiments.compare.sentences import metric_sentence, summary
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, TrialHeader, TrialRecord, plan_grid
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams
from grpo_pipeline.statistics.answer_reading import read_grid_answer
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.multiplicity import holm
from grpo_pipeline.statistics.seed_interval import NOT_COVERED

PRIMARY = ("auroc", "lesion_hit_ratio", "reward")
SKILL = {"supervised": 0.0, "grpo": 1.0, "copy": 0.0, "blind": 0.0}
ARMS = {"copy": {"base": "supervised"}, "blind": {"base": "supervised", "rule": "none"}}
SUITE = build_suite("attention", {})


def evaluation(**changes):
    return EVALUATION.model_copy(update={"seed": 3, "resamples": 400} | changes)


GRID = CompareParams(
    seeds=(0, 1), control="supervised", arms={name: {"base": name} for name in ("supervised", "grpo")} | ARMS,
    primary_metrics=PRIMARY, baseline_rules=("uniform", "oracle", "none"), keep="predictions", split="test",
)  # fmt: skip
PLAN = tiny_plan(**ARMS)


@pytest.fixture(scope="module")
def store(predictions):
    """Trials with a known skill; "copy" holds the control's own rows."""
    found = Memory()
    for trial in PLAN.trials:
        noise = 10 * trial.seed + (trial.arm in ("grpo", "blind"))
        rows = predictions(seed=noise, skill=SKILL[trial.arm]).sample(frac=1, random_state=noise)
        rows.loc[rows["rule"] == "none", "lesion_hit"] = np.nan
        header = TrialHeader(
            trial.key, "attention", trial.arm, trial.seed, None, "finished", 2.0, "d", PLAN.arms[trial.arm].parameters, {}
        )
        found.keep(TrialRecord(header, rows, ()))
    return found


@pytest.fixture(scope="module")
def document(store):
    return compare_trials(PLAN, store, GRID, evaluation(), suite=SUITE)


def rows_of(store, key, rule="policy"):
    rows = store.predictions(key)
    return rows[rows["rule"] == rule].sort_values("core_id").reset_index(drop=True)


def test_a_value_is_the_mean_of_the_seeds_and_an_arm_is_read_by_its_own_rule(store, document):
    def areas(arm, rule):
        tables_ = [rows_of(store, f"{arm}.seed{seed}", rule=rule) for seed in (0, 1)]
        return [roc_auc_score(rows["label"], rows["prob"]) for rows in tables_]

    for arm, rule in (("grpo", "policy"), ("blind", "none")):
        entry, expected = document["arms"][arm]["metrics"]["auroc"], areas(arm, rule)
        assert entry["value"] == pytest.approx(np.mean(expected))
        assert entry["seeds"]["values"] == pytest.approx(dict(zip("01", expected, strict=True)))
        assert entry["seeds"]["sd"] == pytest.approx(np.std(expected, ddof=1))
        assert entry["n"] == 240
    assert document["baselines"]["blind"].keys() == {"uniform", "oracle"}
    assert document["baselines"]["grpo"].keys() == {"uniform", "oracle", "none"}
    oracle = np.mean([rows_of(store, f"grpo.seed{seed}", rule="oracle")["reward"].mean() for seed in (0, 1)])
    assert document["baselines"]["grpo"]["oracle"]["metrics"]["reward"]["value"] == pytest.approx(oracle)
    assert document["baselines"]["grpo"]["oracle"]["metrics"].keys() == set(PRIMARY)


def test_a_difference_resamples_patients_for_both_arms_and_all_seeds_alike(store):
    draws = 40
    found = compare_trials(PLAN, store, GRID, evaluation(resamples=draws), suite=SUITE)["differences"]["grpo"]["auroc"]
    tables_ = {(arm, seed): rows_of(store, f"{arm}.seed{seed}") for arm in ("grpo", "supervised") for seed in (0, 1)}
    counts = cluster_weights(tables_["grpo", 0]["patient_id"], resamples=draws, seed=3).astype(int)
    resampled = []
    for count in counts:
        repeated = {key: rows.loc[rows.index.repeat(count)] for key, rows in tables_.items()}
        areas = {key: roc_auc_score(rows["label"], rows["prob"]) for key, rows in repeated.items()}
        resampled.append(np.mean([areas["grpo", seed] - areas["supervised", seed] for seed in (0, 1)]))
    clusters = np.quantile(resampled, [0.025, 0.975])
    assert found["ci95_clusters"] == pytest.approx(clusters)
    # Seeds and clusters: V = s^2 / 2 + B, the degrees of freedom of both, on the scale of the logit of (d + 1) / 2.
    mean, (one, other) = found["value"], found["seeds"]["values"].values()
    luck, drawn = (one - other) ** 2 / 4, np.var(resampled, ddof=1)
    assert mean == pytest.approx((one + other) / 2)
    rows = tables_["grpo", 0]
    rarer_class = min(rows[rows["label"] == label]["patient_id"].nunique() for label in (0, 1))
    degrees = (luck + drawn) ** 2 / (luck**2 + drawn**2 / (rarer_class - 1))
    error = np.sqrt(luck + drawn) * 2 / (1 - mean**2)  # of ln((1 + d) / (1 - d))
    ends = np.tanh((np.log((1 + mean) / (1 - mean)) + student.ppf(0.975, degrees) * error * np.array([-1, 1])) / 2)
    assert found["ci95"] == pytest.approx([min(ends[0], clusters[0]), max(ends[1], clusters[1])])
    rarer = min(np.sum(np.less_equal(resampled, 0)), np.sum(np.greater_equal(resampled, 0)))
    with_seeds = 2 * student.sf(np.log((1 + mean) / (1 - mean)) / error, degrees)
    assert found["p"] == pytest.approx(max(min(1.0, 2 * (1 + rarer) / 41), with_seeds))


def test_a_real_effect_survives_the_correction_of_the_family_and_a_copy_has_none(document):
    gaps = document["differences"]
    strong, copied = gaps["grpo"]["auroc"], gaps["copy"]["auroc"]
    (wide_low, wide_high), (low, high) = strong["ci95_simultaneous"], strong["ci95"]
    assert 0 < wide_low < low < strong["value"] < high < wide_high
    assert [copied[name] for name in ("value", "p", "p_holm")] == [0, 1, 1]
    # Nothing differs in any of 40 patients, or the 26 with cancer or without: another kind may be among those not seen.
    patients = 26
    assert copied["ci95"] == pytest.approx([-1 + 0.025 ** (1 / patients), 1 - 0.025 ** (1 / patients)])
    assert copied["ci95_simultaneous"][1] > copied["ci95"][1]
    assert any("AUROC against supervised" in sentence and "better in grpo" in sentence for sentence in document["summary"])
    # What has an interval: blind has no hit ratio, and some of the two seeds lie too far apart.
    pairs = {(arm, name): entry["p"] for arm, found in gaps.items() for name, entry in found.items() if "p" in entry}
    assert pairs.keys() == {(arm, name) for arm, found in gaps.items() for name in PRIMARY if found[name]["ci95"]}
    assert len(pairs) == document["correction"]["comparisons"] == 6
    assert {(arm, name): gaps[arm][name]["p_holm"] for arm, name in pairs} == pytest.approx(holm(pairs))
    assert pairs["grpo", "auroc"] < strong["p_holm"] < 0.05
    undefined = gaps["blind"]["lesion_hit_ratio"]
    assert undefined["value"] is None
    assert "lesion outline" in undefined["reason"]
    assert "p" not in {**undefined, **gaps["grpo"]["brier"]}
    assert any("no statement about blind" in sentence for sentence in document["summary"])


def trials_of(predictions, shifts):
    """Trials of seeds 0, 1, 2 of two arms; grpo's reward is the control's plus a shift of its seed."""
    found, plan = Memory(), tiny_plan(seeds=(0, 1, 2))
    for trial in plan.trials:
        rows = predictions(seed=trial.seed)
        if trial.arm == "grpo":
            rows["reward"] += shifts[trial.seed] + 0.001 * (np.arange(len(rows)) % 7)
        header = TrialHeader(
            trial.key, "attention", trial.arm, trial.seed, None, "finished", 2.0, "d", plan.arms[trial.arm].parameters, {}
        )
        found.keep(TrialRecord(header, rows, ()))
    return plan, found


@pytest.mark.parametrize(
    ("shifts", "verdict"), [((0.1, 0.11, 0.12), "better in grpo"), ((0.02, 0.1, 0.3), "no difference shown")]
)
def test_the_luck_of_the_seeds_decides_in_every_sentence_mark_and_p_value(predictions, shifts, verdict):
    """Every patient gains in every seed, so the clusters alone would show a gain; how much, the seed decides."""
    grid = CompareParams(**GRID.model_dump() | {
        "seeds": (0, 1, 2), "arms": {name: {"base": name} for name in ("supervised", "grpo")}, "primary_metrics": ("reward",),
    })  # fmt: skip
    found = compare_trials(*trials_of(predictions, shifts), grid, evaluation(), suite=SUITE)
    gap = found["differences"]["grpo"]["reward"]
    assert gap["ci95_clusters"][0] > 0.02
    is_shown = verdict.startswith("better")
    assert (gap["ci95"][0] > 0, gap["p"] < 0.05, gap["p_holm"] < 0.05, gap["ci95_simultaneous"][0] > 0) == (is_shown,) * 4
    [corrected] = [said for said in found["summary"] if said.startswith("Reward against supervised")]
    assert verdict in corrected
    [told] = [said for said in found["summary"] if said.startswith("grpo, better than supervised")]
    assert ("Reward +" in told) == is_shown
    row = tables.metric_table(found, "reward", SUITE.metrics["reward"]).rows[1]
    assert row[3].tone == ("better" if is_shown else "")


def test_one_seed_is_said_to_leave_out_its_luck_and_two_far_apart_show_nothing(predictions):
    grid = GRID.model_dump() | {"arms": {name: {"base": name} for name in ("supervised", "grpo")}, "primary_metrics": ("reward",)}
    plan, store = trials_of(predictions, (0.02, 0.3, 0.0))
    for seeds in ((0,), (0, 1)):
        kept = replace(plan, trials=tuple(trial for trial in plan.trials if trial.seed in seeds))
        found = compare_trials(kept, store, CompareParams(**grid | {"seeds": seeds}), evaluation(), suite=SUITE)
        gap = found["differences"]["grpo"]["reward"]
        assert gap["ci95_clusters"][0] > 0
        assert (found["summary"][0] == NOT_COVERED) == (len(seeds) == 1)
        said = next(said for said in found["summary"] if said.startswith("Reward against supervised"))
        if len(seeds) == 1:
            assert gap["ci95"] == gap["ci95_clusters"]
            assert "better in grpo" in said
        else:
            assert gap["ci95"] is None
            assert "p" not in gap
            assert gap["reason"] == "no interval: too few seeds, 2 that differ by more than the clusters explain"
            assert "no statement about grpo" in said


def test_of_few_clusters_no_arm_is_called_better(store):
    few = Memory()
    for record in store.records.values():
        rows = record.predictions
        few.keep(replace(record, predictions=rows[rows["patient_id"].isin([f"patient{n:03d}" for n in range(9)])]))
    found = compare_trials(PLAN, few, GRID, evaluation(), suite=SUITE)
    assert found["summary"][0].startswith("Only 9 clusters by patient_id are held out, fewer than 10")
    text = tables.summary(found, SUITE.metrics)
    assert not re.findall(r"better (in|than)|worse (in|than)|\[[+-]?\d\.", text)
    assert "no statement about grpo" in text
    assert found["correction"]["comparisons"] == 0


def steps(count, calls=32.0):
    return [{"step": step, "split": "train", "samples": 32.0, "reward_calls": calls} for step in range(count)]


def test_an_arm_that_trained_longer_than_the_control_is_said_first(store, document):
    """Seed 1 of grpo has 130 steps, seed 0 110: 120 on average, where the control has 30."""
    assert not document["summary"][0].startswith("Unequal")
    found = Memory()
    for key, record in store.records.items():
        longer = 110 + 20 * record.header.seed
        found.keep(replace(record, metric_rows=steps(longer, calls=64.0) if key.startswith("grpo") else steps(30)))
    said = compare_trials(PLAN, found, GRID, evaluation(), suite=SUITE)
    assert said["training"]["grpo"] == {"steps": 120, "samples": 3840, "reward_calls": 7680, "learns_from_reward": False}
    assert said["summary"] == [
        "Unequal training: grpo had 120 steps against 30, 3,840 samples against 960, 7,680 reward calls against 960 of the "
        "control supervised: more steps alone may explain a difference.",
        *document["summary"],
    ]


def test_what_got_worse_is_said_of_every_metric_by_the_interval_that_holds_the_seeds(document):
    found = copy.deepcopy(document)
    for name, (value, clusters, decides) in {
        "brier": (0.1, [0.05, 0.15], [0.02, 0.18]), "ece": (-0.1, [-0.15, -0.05], [-0.15, -0.05]),
        "average_precision": (-0.1, [-0.15, -0.05], [-0.3, 0.1]), "auroc": (-0.2, [-0.3, -0.1], [-0.35, -0.05]),
    }.items():  # fmt: skip
        found["differences"]["grpo"][name] |= {"value": value, "ci95": decides, "ci95_clusters": clusters}
    found["differences"]["grpo"]["auroc"]["ci95_simultaneous"] = [-0.4, -0.01]
    said = summary(found, SUITE.metrics, chance_rule="uniform")
    assert "worse in grpo" in next(sentence for sentence in said if sentence.startswith("AUROC against supervised"))
    worse, better = (next(s for s in said if s.startswith(f"grpo, {kind} than supervised")) for kind in ("worse", "better"))
    assert said.index(better) == said.index(worse) + 1
    titles = {name: SUITE.metrics[name].title for name in ("brier", "ece", "average_precision", "auroc")}
    assert f"{titles['brier']} +0.100 (95% interval +0.020 to +0.180)" in worse
    assert f"{titles['auroc']} -0.200" in worse
    assert f"{titles['ece']} -0.100 (95% interval -0.150 to -0.050)" in better
    assert f"{titles['average_precision']} -" not in worse + better
    # What was corrected is not called worse in one sentence and not in the other, by p-value or by simultaneous interval.
    for weaker in ({"p_holm": 0.05}, {"ci95_simultaneous": [-0.41, 0.01]}):
        weak = copy.deepcopy(found)
        weak["differences"]["grpo"]["auroc"] |= weaker
        said = summary(weak, SUITE.metrics, chance_rule="uniform")
        assert "worse in grpo" not in next(sentence for sentence in said if sentence.startswith("AUROC against supervised"))
    assert titles["auroc"] + " -" not in next(s for s in said if s.startswith("grpo, worse than supervised"))
    gap = {"grpo": {"catch": {"value": -1.0, "ci95": [-1.5, -0.5], "p_holm": 0.01}}}
    found = {"control": "supervised", "correction": {"comparisons": 1}, "differences": gap}
    for side, word in (("higher", "worse"), ("lower", "better"), ("none", "lower")):
        text = metric_sentence(found, "catch", replace(SUITE.metrics["auroc"], title="Catch", better=side))
        assert text == f"Catch against supervised, corrected for 1 comparisons: {word} in grpo."


def lose(store, key, **changes):
    """The same trials with one of them changed."""
    found = Memory(dict(store.records))
    found.records[key] = replace(found.records[key], header=replace(found.records[key].header, **changes))
    return found


def compared(store):
    return compare_trials(PLAN, store, GRID, evaluation(), suite=SUITE)


def test_a_cell_that_failed_or_has_other_parameters_costs_its_seed_and_is_named(store, document):
    found = compared(lose(store, "grpo.seed1", status="failed", reason="loss must be finite, got nan"))
    before, gap = document["differences"]["grpo"]["auroc"]["seeds"]["values"], found["differences"]["grpo"]["auroc"]
    assert gap["seeds"]["values"] == {"0": before["0"]}
    assert gap["value"] == before["0"]
    assert found["arms"]["grpo"]["metrics"]["auroc"]["seeds"]["n"] == 1
    assert found["arms"]["supervised"] == document["arms"]["supervised"]
    assert found["trials"]["grpo.seed1"] == {"status": "failed", "seconds": 2.0, "reason": "loss must be finite, got nan"}
    assert found["summary"][-1] == "Not in the table: grpo.seed1 (loss must be finite, got nan)."
    assert found["notes"] == found["summary"][-1:]
    assert read_grid_answer(found | {"commit": "x"}, SUITE).remarks[-1] == found["notes"][0]  # the terminal says it, too
    stale = compared(lose(store, "grpo.seed0", parameters={"training": {"epochs": 99}}))
    assert stale["arms"]["grpo"]["metrics"]["auroc"]["seeds"]["values"].keys() == {"1"}
    assert stale["trials"]["grpo.seed0"]["reason"] == "trained with other parameters; run compare again"


def test_an_arm_without_a_finished_cell_is_absent_and_the_control_must_have_one(store):
    found = compared(Memory({key: record for key, record in store.records.items() if not key.startswith("grpo")}))
    assert "grpo" not in found["arms"]
    assert found["trials"]["grpo.seed0"] == {"status": "missing", "seconds": None, "reason": "not trained"}
    assert "grpo" not in tables.summary(found, SUITE.metrics).split("Not in the table")[0]
    lost = lose(lose(store, "supervised.seed0", status="failed", reason="broken"), "supervised.seed1", status="failed")
    with pytest.raises(CompareError, match=r"supervised must have a finished trial, got none \(supervised.seed0: broken\)"):
        compared(lost)


def test_the_document_is_json_and_the_long_table_holds_its_numbers(document):
    # 3 * 2 / (119 + 1) is exactly the 0.05 that must be undercut.
    assert "note" not in describe_correction(3, 2.0, resamples=120)
    for resamples in (118, 119):
        note = describe_correction(3, 2.0, resamples=resamples)["note"]
        assert note.startswith(f"with {resamples} resamples no corrected p-value of 3 compar")
        assert note.endswith("to at least 120")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert all("n" in entry for arm in document["arms"].values() for entry in arm["metrics"].values())
    assert not any("n" in entry for arm in document["differences"].values() for entry in arm.values())
    table = tables.long_table(document).set_index(["arm", "rule", "metric"])
    row, gap = table.loc["grpo", "policy", "reward"], document["differences"]["grpo"]["reward"]
    assert row["value"] == document["arms"]["grpo"]["metrics"]["reward"]["value"]
    for ends in ("ci95", "ci95_clusters"):
        found = [row[f"difference_{ends}_{end}"] for end in ("low", "high")]
        np.testing.assert_array_equal(np.array(found, float), np.array(gap[ends] or [None, None], float))
    assert row["difference_seeds_n"] == 2
    row, gap = table.loc["grpo", "policy", "auroc"], document["differences"]["grpo"]["auroc"]
    assert [row["difference_ci95_simultaneous_low"], row["difference_ci95_simultaneous_high"]] == gap["ci95_simultaneous"]
    assert (row["p"], row["p_holm"]) == (gap["p"], gap["p_holm"])
    assert pd.isna(table.loc["supervised", "policy", "reward"]["difference"])
    assert pd.isna(table.loc["grpo", "oracle", "reward"]["difference"])
    # "blind" has none as its own rule, and so two others
    assert len(table) == 4 * len(SUITE.metrics) + 3 * 3 * 3 + 2 * 3


def arranged(*, primary=("auroc", "reward"), baselines=("uniform",), **arm):
    arms = {"supervised": {"base": "supervised", "set": SHORT | {"algorithm": {}}}, "grpo": {"base": "grpo", "set": SHORT} | arm}
    changes = {"seeds": (3, 1), "arms": arms, "primary_metrics": primary, "baseline_rules": baselines}
    return arrange_trials(CompareParams(**GRID.model_dump() | changes), EVALUATION, {"attention": tiny_parameters()})


def test_what_cannot_be_compared_is_refused():
    for changes, message in (
        ({"primary": ("auc",)}, r"attention\.compare\.primary_metrics must be among auroc, .*, got 'auc'; correct it"),
        ({"rule": "polcy"}, r"attention\.compare\.arms\.grpo\.rule must be among policy, .*, got 'polcy'"),
        ({"baselines": ("orcale",)}, r"attention\.compare\.baseline_rules must be among policy, .*, got 'orcale'"),
        ({"set": {"reward": {"heatmap": {"weight": 1.0}}}}, "primary_metrics must not hold 'reward' .*, got it with the arm"),
    ):
        with pytest.raises(ValueError, match=message):
            arranged(**changes)
    # Components of the reward may be compared whatever their weights. Cells go seed by seed, the control first.
    plan = arranged(primary=("reward_class",), set={"reward": {"heatmap": {"weight": 1.0}}})
    assert [trial.key for trial in plan.trials] == ["supervised.seed3", "grpo.seed3", "supervised.seed1", "grpo.seed1"]
    assert plan.arms["grpo"].parameters["reward"]["heatmap"]["weight"] == 1.0
    # So may what only some configurations measure; that none of these trials has it is known afterwards.
    for primary in (
        ("dice", "auroc_class_benign", "balanced_accuracy"),
        ("exact_match", "average_precision_macro"),
        ("reader_auroc",),
    ):
        arranged(primary=primary)


def test_a_primary_metric_must_be_one_that_some_trial_measured(store):
    grid = CompareParams(**GRID.model_dump() | {"primary_metrics": ("dice",)})
    said = r"attention\.compare\.primary_metrics must be among what the trials measured, auroc, .* got 'dice'; .* are kept"
    with pytest.raises(CompareError, match=said):
        compare_trials(PLAN, store, grid, evaluation(), suite=SUITE)
    drawn = Memory()
    for record in store.records.values():
        header, rows = record.header, record.predictions
        drawn.keep(TrialRecord(replace(header, metrics={"dice": 0.5}), rows.assign(dice=0.5 + 0.1 * (header.arm == "grpo")), ()))
    # Findings whose AUROC is undefined, so that no header has it: their other metrics are there, and why this one is not.
    rare, told = Memory(), {"findings": 1.0, "prob_cyst": 0.7, "prob_mass": 0.2}
    for record in store.records.values():
        rare.keep(TrialRecord(replace(record.header, metrics={"exact_match": 1.0}), record.predictions.assign(**told), ()))
    grid_of_rare = CompareParams(**GRID.model_dump() | {"primary_metrics": ("exact_match",)})
    found = compare_trials(PLAN, rare, grid_of_rare, evaluation(), suite=SUITE)["arms"]["grpo"]["metrics"]
    assert (found["exact_match"]["value"], found["auroc_finding_cyst"]["value"]) == (1.0, None)
    gap = compare_trials(PLAN, drawn, grid, evaluation(), suite=SUITE)["differences"]["grpo"]["dice"]
    assert gap["value"] == pytest.approx(0.1)
    # The same in all 40 patients: the exact bound of a difference in [-1, 1].
    unseen = 1 - 0.025 ** (1 / 40)
    assert gap["ci95"] == pytest.approx([0.1 - 1.1 * unseen, 0.1 + 0.9 * unseen])


def test_scores_are_those_of_one_rule_without_the_undefined(predictions):
    rows = predictions(seed=0)
    oracle = rows[rows["rule"] == "oracle"]
    found = score_rows(rows, "oracle", suite=SUITE, cluster="patient_id")
    assert found["auroc"] == pytest.approx(roc_auc_score(oracle["label"], oracle["prob"]))
    assert "prompt_sensitivity_images" not in found
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("own", "of_gap", "told"), [(None, None, None), (None, "gap", "gap"), ("own", "gap", "own"), ("own", None, "own")]
)
def test_a_row_of_the_long_table_has_its_numbers_and_the_reason_of_what_is_missing(own, of_gap, told):
    seeds = {"n": 2, "sd": 0.5, "min": 1.0, "max": 2.0}
    entry = {"value": 1.5, "ci95": [1.0, 2.0], "ci95_clusters": [1.1, 1.9], "n": 7, "seeds": seeds, "reason": own}
    gap = {
        "value": 0.25, "ci95": [-0.5, 1.0], "ci95_clusters": [0.0, 0.5], "ci95_simultaneous": [-1.0, 1.5], "p": 0.2,
        "p_holm": 0.4, "seeds": {"n": 1, "sd": None, "min": 0.1, "max": 0.3}, "reason": of_gap,
    }  # fmt: skip
    row = tables.flat(entry, gap)
    assert row["reason"] == told
    names = ("value", "ci95_low", "ci95_high", "ci95_clusters_low", "ci95_clusters_high", "n", "seeds_n", "seeds_sd", "seeds_min")
    assert [row[name] for name in (*names, "seeds_max")] == [1.5, 1.0, 2.0, 1.1, 1.9, 7, 2, 0.5, 1.0, 2.0]
    assert [row[name] for name in ("difference", "p", "p_holm")] == [0.25, 0.2, 0.4]
    ends = [row[f"difference_{key}_{end}"] for key in ("ci95", "ci95_clusters", "ci95_simultaneous") for end in ("low", "high")]
    assert ends == [-0.5, 1.0, 0.0, 0.5, -1.0, 1.5]
    assert [row[f"difference_seeds_{key}"] for key in seeds] == [1, None, 0.1, 0.3]
    alone = tables.flat(entry, None)
    assert (alone["difference"], alone["p"], alone["difference_seeds_n"], alone["reason"]) == (None, None, None, own)
    assert alone.keys() == row.keys()


def test_p_values_are_told_with_two_digits_and_1_as_it_is():
    assert [tables.p_text(p) for p in (1.0, 0.5, 0.0123, 0.001, 0.00099)] == ["1", "0.5", "0.012", "0.001", "9.9e-04"]


def test_the_training_of_an_arm_is_the_mean_of_its_seeds_and_a_fitted_arm_has_none():
    def arm(baseline=None):
        return SimpleNamespace(description=SimpleNamespace(baseline=baseline), parameters={})

    plan = plan_grid("cows", {"control": arm(), "own": arm(), "fitted": arm("mean")}, (4, 9))
    trials = Memory()
    for trial in plan.trials:
        steps = {"control": 2, "own": 4, "fitted": 6}[trial.arm] + (2 if trial.seed == 9 else 0)
        header = TrialHeader(trial.key, "cows", trial.arm, trial.seed, None, "finished", 1.0, "d", {})
        row = {"split": "train", "samples": 4.0, "reward_calls": 2.0, "policy/loss": 0.5 if trial.arm == "own" else None}
        trials.keep(TrialRecord(header, metric_rows=[row] * steps))
    assert budgets_of(plan, trials) == {"control": Budget(3, 12, 6, False), "own": Budget(5, 20, 10, True)}


def test_every_trial_scores_the_split_that_the_document_of_the_comparison_names(monkeypatch, store):
    """Validation by default (conf/base): a choice by the test split would leave nothing to report on."""
    benches = []
    monkeypatch.setattr(nodes, "run_trials", lambda plan, bench, before: benches.append(bench) or iter(()))
    for split in ("val", "test"):
        params = CompareParams(**GRID.model_dump() | {"split": split})
        assert [*nodes.train_trial(params, evaluation(), SERIAL, PLAN, make_examples(), store)] == []
        assert compare_trials(PLAN, store, params, evaluation(), suite=SUITE)["split"] == benches[-1].split == split
    shared = yaml.safe_load((CONF / "base/parameters_tasks.yml").read_text(encoding="utf-8"))
    assert shared["{task}"]["compare"]["split"] == "val"
