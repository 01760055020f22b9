"""The document of a grid whose predictions are made up, against loops over patients and seeds."""

import copy
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION
from tiny_grid import SHORT, Memory, tiny_parameters, tiny_plan

from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.experiments.compare import tables
from grpo_pipeline.pipelines.experiments.compare.document import compare_trials, describe_correction, metric_sentence, summary
from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, score_rows
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, TrialHeader, TrialRecord
from grpo_pipeline.statistics.bootstrap import cluster_weights, holm

PRIMARY = ("auroc", "lesion_hit_ratio", "reward")
SKILL = {"supervised": 0.0, "grpo": 1.0, "copy": 0.0, "blind": 0.0}
ARMS = {"copy": {"base": "supervised"}, "blind": {"base": "supervised", "rule": "none"}}
SUITE = build_suite("attention", {})


def evaluation(**changes):
    return EVALUATION.model_copy(update={"seed": 3, "resamples": 400, "max_undefined": 0.1} | changes)


GRID = CompareParams(
    seeds=(0, 1), control="supervised", arms={name: {"base": name} for name in ("supervised", "grpo")} | ARMS,
    primary_metrics=PRIMARY, baseline_rules=("uniform", "oracle", "none"), keep="predictions",
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
    assert found["ci95"] == pytest.approx(np.quantile(resampled, [0.025, 0.975]))
    rarer = min(np.sum(np.less_equal(resampled, 0)), np.sum(np.greater_equal(resampled, 0)))
    assert found["p"] == pytest.approx(min(1.0, 2 * (1 + rarer) / 41))


def test_a_real_effect_survives_the_correction_of_the_whole_family_and_a_copy_differs_by_nothing(document):
    gaps = document["differences"]
    strong, copied = gaps["grpo"]["auroc"], gaps["copy"]["auroc"]
    (wide_low, wide_high), (low, high) = strong["ci95_simultaneous"], strong["ci95"]
    assert 0 < wide_low < low < strong["value"] < high < wide_high
    assert [copied[name] for name in ("value", "ci95", "p", "p_holm", "ci95_simultaneous")] == [0, [0, 0], 1, 1, [0, 0]]
    assert any("AUROC against supervised" in sentence and "better in grpo" in sentence for sentence in document["summary"])
    # grpo and copy: 3 metrics each; blind has no points and so no hit ratio
    pairs = {(arm, name): entry["p"] for arm, found in gaps.items() for name, entry in found.items() if "p" in entry}
    assert len(pairs) == document["correction"]["comparisons"] == 8
    assert {(arm, name): gaps[arm][name]["p_holm"] for arm, name in pairs} == pytest.approx(holm(pairs))
    assert pairs["grpo", "auroc"] < strong["p_holm"] < 0.05
    undefined = gaps["blind"]["lesion_hit_ratio"]
    assert undefined["value"] is None
    assert "lesion outline" in undefined["reason"]
    assert "p" not in {**undefined, **gaps["grpo"]["brier"]}
    assert any("no statement about blind" in sentence for sentence in document["summary"])


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
    for name, (value, narrow, wide) in {
        "brier": (0.1, [0.05, 0.15], [0.02, 0.18]), "ece": (-0.1, [-0.15, -0.05], None),
        "average_precision": (-0.1, [-0.15, -0.05], [-0.3, 0.1]), "auroc": (-0.2, [-0.3, -0.1], [-0.35, -0.05]),
    }.items():  # fmt: skip
        found["differences"]["grpo"][name] |= {"value": value, "ci95": narrow, "ci95_with_seeds": wide}
    said = summary(found, SUITE.metrics, chance_rule="uniform")
    assert "worse in grpo" in next(sentence for sentence in said if sentence.startswith("AUROC against supervised"))
    worse, better = (next(s for s in said if s.startswith(f"grpo, {kind} than supervised")) for kind in ("worse", "better"))
    assert said.index(better) == said.index(worse) + 1
    titles = {name: SUITE.metrics[name].title for name in ("brier", "ece", "average_precision", "auroc")}
    assert f"{titles['brier']} +0.100 (95% interval +0.020 to +0.180)" in worse
    assert f"{titles['auroc']} -0.200" in worse
    assert f"{titles['ece']} -0.100 (95% interval -0.150 to -0.050)" in better
    assert f"{titles['average_precision']} -" not in worse + better
    gap = {"grpo": {"catch": {"value": -1.0, "p_holm": 0.01}}}
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
    stale = compared(lose(store, "grpo.seed0", parameters={"training": {"epochs": 99}}))
    assert stale["arms"]["grpo"]["metrics"]["auroc"]["seeds"]["values"].keys() == {"1"}
    assert stale["trials"]["grpo.seed0"]["reason"] == "trained with other parameters; run compare again"


def test_an_arm_without_a_finished_cell_is_absent_and_without_the_control_there_is_no_comparison(store):
    found = compared(Memory({key: record for key, record in store.records.items() if not key.startswith("grpo")}))
    assert "grpo" not in found["arms"]
    assert found["trials"]["grpo.seed0"] == {"status": "missing", "seconds": None, "reason": "not trained"}
    assert "grpo" not in tables.summary(found, SUITE.metrics).split("Not in the table")[0]
    lost = lose(lose(store, "supervised.seed0", status="failed", reason="broken"), "supervised.seed1", status="failed")
    with pytest.raises(CompareError, match=r"supervised must have a finished trial, got none \(supervised.seed0: broken\)"):
        compared(lost)


def test_the_document_is_json_and_the_long_table_holds_its_numbers(document):
    assert "note" not in describe_correction(3, 2.0, resamples=119)
    assert describe_correction(3, 2.0, resamples=118)["note"].startswith("with 118 resamples no corrected p-value of 3 compar")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    table = tables.long_table(document).set_index(["arm", "rule", "metric"])
    row, gap = table.loc["grpo", "policy", "reward"], document["differences"]["grpo"]["reward"]
    assert row["value"] == document["arms"]["grpo"]["metrics"]["reward"]["value"]
    assert [row["difference_ci95_low"], row["difference_ci95_high"]] == gap["ci95"]
    assert [row["difference_ci95_simultaneous_low"], row["difference_ci95_simultaneous_high"]] == gap["ci95_simultaneous"]
    assert (row["p"], row["p_holm"], row["difference_seeds_n"]) == (gap["p"], gap["p_holm"], 2)
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
        ({"set": {"reward": {"heatmap_weight": 1.0}}}, "primary_metrics must not hold 'reward' .*, got it with the arm grpo"),
    ):
        with pytest.raises(ValueError, match=message):
            arranged(**changes)
    # Components of the reward may be compared whatever their weights. Cells go seed by seed, the control first.
    plan = arranged(primary=("reward_class",), set={"reward": {"heatmap_weight": 1.0}})
    assert [trial.key for trial in plan.trials] == ["supervised.seed3", "grpo.seed3", "supervised.seed1", "grpo.seed1"]
    assert plan.arms["grpo"].parameters["reward"]["heatmap_weight"] == 1.0
    # So may what only some configurations measure; that none of these trials has it is known afterwards.
    for primary in (
        ("dice", "auroc_class_benign", "balanced_accuracy"),
        ("exact_match", "average_precision_macro"),
        ("reader_auroc",),
    ):
        arranged(primary=primary)


def test_a_primary_metric_that_no_trial_measured_is_refused_and_one_that_some_did_is_compared(store):
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
    assert gap["ci95"] == pytest.approx([0.1, 0.1])


def test_scores_are_those_of_one_rule_without_the_undefined(predictions):
    rows = predictions(seed=0)
    oracle = rows[rows["rule"] == "oracle"]
    found = score_rows(rows, "oracle", suite=SUITE, cluster="patient_id")
    assert found["auroc"] == pytest.approx(roc_auc_score(oracle["label"], oracle["prob"]))
    assert "prompt_sensitivity_images" not in found
    assert all(np.isfinite(value) for value in found.values())
