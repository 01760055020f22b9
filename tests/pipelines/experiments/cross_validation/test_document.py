"""Out-of-fold rows -> the result: against scikit-learn fold by fold, and what happens when something is missing."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION, make_params, plan_cores, task_parameters
from tiny_grid import Memory
from told_answers import unmarked

from grpo_pipeline.pipelines.evaluation.nodes import state_grid_answer
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.cross_validation import forests, nodes, tables
from grpo_pipeline.pipelines.experiments.cross_validation.choice import nothing_to_choose
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import outer_plan
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import ensemble
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, TrialHeader, TrialRecord
from grpo_pipeline.pipelines.reporting.markdown import cell_text
from grpo_pipeline.pipelines.reporting.tables import difference_cell, value_cell
from grpo_pipeline.tasks.attention.evaluation.metrics import REQUIRED

METRICS = build_suite("attention", {}).metrics
PARAMS = make_params("kfold", folds=3, seeds=[0, 1], val_share=0.3)
SETTINGS = nodes.arrange_arms(PARAMS, EVALUATION, task_parameters())


def make_cores():
    """90 cores of 30 patients in two centers; patients 20 and above are held out."""
    number, label = np.repeat(np.arange(30), 3), np.random.default_rng(0).integers(0, 2, 90)
    names = {"core_id": [f"c{i:02d}" for i in range(90)], "patient_id": [f"p{n:02d}" for n in number]}
    values = {"label": label, "involvement": np.where(label == 1, 0.4, 0.0), "grade_group": 3.0 * label}
    return pd.DataFrame(names | {"center": np.where(number % 2, "b", "a")} | values)


CORES = make_cores()
PLAN = plan_cores(CORES, {"test": CORES.loc[CORES["patient_id"] >= "p20", "core_id"].tolist()}, PARAMS)


def squeezed(markdown):
    """Return Markdown without the blanks that make its columns even."""
    return re.sub(" +", " ", markdown)


def written(entry):
    return cell_text(value_cell(entry))


def predict(trial, skill):
    """Prediction rows of one trial, the scale of its probabilities being that of its fold."""
    rng = np.random.default_rng([trial.seed, int(trial.fold)])
    rows = CORES[CORES["core_id"].map(trial.split) == "test"].reset_index(drop=True)
    score = skill * rows["label"] + rng.normal(size=len(rows)) + 1.5 * int(trial.fold)
    values = {"prob": 1 / (1 + np.exp(-score)), "reward": rng.normal(size=len(rows)) + skill}
    others = {name: np.nan for name in REQUIRED if name not in rows}
    return pd.concat([rows.assign(**(others | values | {"rule": rule})) for rule in ("policy", "uniform")], ignore_index=True)


def stored(*, grpo=1.0, without=(), failed=()):
    """All outer trials with predictions; the control has skill 1, grpo the one that is given."""
    trials = outer_plan(SETTINGS, PLAN, PARAMS.seeds, nothing_to_choose(SETTINGS, PLAN)).trials
    store = Memory()
    for trial in (one for one in trials if one.key not in without):
        status = "failed" if trial.key in failed else "finished"
        reason = "out of memory" if status == "failed" else None
        header = TrialHeader(trial.key, "attention", trial.arm, trial.seed, trial.fold, status, 1.0, "d", {}, reason=reason)
        store.keep(TrialRecord(header, predict(trial, grpo if trial.arm == "grpo" else 1.0)))
    return store


def collect(store):
    return nodes.pool_predictions(PARAMS, EVALUATION, SETTINGS, PLAN.document(), [], store)


def score(store):
    return nodes.score_predictions(PARAMS, EVALUATION, PLAN.document(), [], collect(store), "unknown")


@pytest.fixture(scope="module")
def result():
    return score(stored(grpo=2.0))


def by_fold(store, arm, seed):
    """The policy's rows of one arm and seed, fold by fold, straight from the trials."""
    for number, fold in enumerate(PLAN.folds):
        rows = store.predictions(f"{arm}.seed{seed}.fold{number}")
        yield rows[(rows["rule"] == "policy") & rows["core_id"].isin(fold.test)]


def test_values_are_those_of_scikit_learn_averaged_over_the_seeds(result):
    store = stored(grpo=2.0)
    for arm in ("supervised", "grpo"):
        parts = [list(by_fold(store, arm, seed)) for seed in (0, 1)]
        scores = [[roc_auc_score(part["label"], part["prob"]) for part in one] for one in parts]
        pairs = [[part["label"].sum() * (1 - part["label"]).sum() for part in one] for one in parts]
        pooled = [roc_auc_score(whole["label"], whole["prob"]) for whole in map(pd.concat, parts)]
        found, spread = result["arms"][arm]["metrics"]["auroc"], result["spread"][arm]["auroc"]
        stratified = [np.average(values, weights=mass) for values, mass in zip(scores, pairs, strict=True)]
        assert found["stratified"]["value"] == pytest.approx(np.mean(stratified))
        assert found["pooled"]["value"] == pytest.approx(np.mean(pooled))
        assert found["fold_mean"]["value"] == pytest.approx(np.mean(scores))
        assert list(spread["folds"].values()) == pytest.approx(np.mean(scores, axis=0))
        assert spread["sd"] == pytest.approx(np.std(np.mean(scores, axis=0), ddof=1))


def test_differences_are_paired(result):
    gap = result["differences"]["grpo"]
    for kind in ("stratified", "pooled", "fold_mean"):
        arms = {arm: result["arms"][arm]["metrics"]["auroc"][kind]["value"] for arm in ("supervised", "grpo")}
        assert gap["auroc"][kind]["value"] == pytest.approx(arms["grpo"] - arms["supervised"])
    # The same noise in both arms and a reward that is 1 higher for each core: nothing is left to vary.
    assert gap["reward"]["stratified"]["value"] == pytest.approx(1.0)
    assert gap["reward"]["stratified"]["ci95"] == pytest.approx([1.0, 1.0])
    same = score(stored(grpo=1.0))["differences"]["grpo"]["auroc"]["stratified"]
    # No patient differs, of the rarer class C: those that were not seen may, and the exact bound reaches as far.
    tested = CORES[CORES["patient_id"] < "p20"]
    count = min(tested[tested["label"] == label]["patient_id"].nunique() for label in (0, 1))
    reach = 1 - 0.025 ** (1 / count)
    assert (same["value"], same["ci95"]) == (0.0, pytest.approx([-reach, reach]))


def test_the_held_out_cores_are_read_from_the_mean_probability_and_model_by_model(result):
    """The mean over models leaves what belongs to the core."""
    store, together, single = stored(grpo=2.0), [], []
    for seed in (0, 1):
        tables_ = [store.predictions(f"grpo.seed{seed}.fold{number}") for number in range(3)]
        held = [rows[(rows["rule"] == "policy") & rows["core_id"].isin(PLAN.held_out)].sort_values("core_id") for rows in tables_]
        together.append(roc_auc_score(held[0]["label"], np.mean([rows["prob"].to_numpy() for rows in held], axis=0)))
        single += [roc_auc_score(rows["label"], rows["prob"]) for rows in held]
    found = result["held_out"]["arms"]["grpo"]["metrics"]["auroc"]
    assert found["ensemble"]["value"] == pytest.approx(np.mean(together))
    assert found["single_models"]["value"] == pytest.approx(np.mean(single))
    assert result["held_out"]["n"] == {"examples": 30, "clusters": 10, "cluster": "patient_id"}
    rows = collect(stored()).held_out["grpo"][0]
    mean = ensemble(rows, "core_id").set_index("core_id")
    assert mean["involvement"].to_dict() == rows.groupby("core_id")["involvement"].first().to_dict()
    assert mean["prob"].to_dict() == pytest.approx(rows.groupby("core_id")["prob"].mean().to_dict())
    assert (mean["rule"] == "policy").all()
    assert "fold" not in mean


def test_a_metric_that_only_the_rows_have_is_judged_like_any_other():
    """Dice is known where a run draws masks; it may be primary or decide, and where no fold measured it that is said."""
    params = PARAMS.model_copy(update={"primary_metrics": ("dice", "accuracy"), "selection_metric": "kappa_quadratic"})
    nodes.arrange_arms(params, EVALUATION, task_parameters())
    params, store = params.model_copy(update={"primary_metrics": ("dice",)}), stored()
    for number, (key, record) in enumerate(store.records.items()):
        drawn = record.predictions.assign(dice=np.linspace(0.1, 0.9, len(record.predictions)) ** (1 + number))
        store.records[key] = TrialRecord(record.header, drawn)
    found = nodes.score_predictions(params, EVALUATION, PLAN.document(), [], collect(store), "unknown")
    means = [pd.concat(by_fold(store, "grpo", seed))["dice"].mean() for seed in (0, 1)]
    assert found["arms"]["grpo"]["metrics"]["dice"]["pooled"]["value"] == pytest.approx(np.mean(means))
    text = squeezed(nodes.write_summary(EVALUATION, found))
    assert f"| grpo | {written(found['arms']['grpo']['metrics']['dice']['stratified'])} |" in text
    assert any(name.endswith("_dice.svg") for name in nodes.draw_folds(EVALUATION, found))
    said = (
        "cross_validation.primary_metrics must be among what the trials measured, auroc, .* got 'dice'.* trained trials are kept"
    )
    with pytest.raises(CompareError, match=said):
        nodes.score_predictions(params, EVALUATION, PLAN.document(), [], collect(stored()), "unknown")


def test_a_seed_with_a_missing_fold_is_left_out_and_named():
    lost = score(stored(without=["grpo.seed1.fold2"], failed=["grpo.seed0.fold0"]))
    assert lost["missing"] == {"grpo.seed0.fold0": "out of memory", "grpo.seed1.fold2": "not trained"}
    assert lost["seeds"] == {"supervised": [0, 1], "grpo": []}
    assert list(lost["arms"]) == ["supervised"]
    said = "grpo.seed0.fold0 is missing, and with it the other folds of its arm and seed: out of memory"
    assert said in tables.summary(lost, METRICS)
    some = score(stored(without=["supervised.seed1.fold2"]))
    assert some["seeds"] == {"supervised": [0], "grpo": [0, 1]}
    # Paired over the seeds that both have: the arms are alike there, though grpo's mean is over two seeds.
    assert some["differences"]["grpo"]["auroc"]["stratified"]["value"] == 0.0
    with pytest.raises(CompareError, match="supervised must have a seed whose folds all finished, .*seed0.fold1: not trained"):
        collect(stored(without=["supervised.seed0.fold1", "supervised.seed1.fold0"]))
    store = stored()
    other = store.records["grpo.seed0.fold2"].predictions
    store.records["grpo.seed0.fold1"] = TrialRecord(store.records["grpo.seed0.fold1"].header, other)
    with pytest.raises(ValueError, match=r"predictions of grpo.seed0.fold1 must hold the 51 cores .* the folds have changed"):
        collect(store)


def test_result_table_summary_and_figure_say_the_same(result):
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    rows, sizes = tables.long_predictions(collect(stored())), {"out_of_fold": 60, "held_out": 90}
    cells = {(arm, seed, part): n for arm in ("grpo", "supervised") for seed in (0, 1) for part, n in sizes.items()}
    assert rows.groupby(["arm", "seed", "part"]).size().to_dict() == cells
    assert set(rows["rule"]) == {"policy"}
    text, folds = (
        squeezed(tables.summary(result, METRICS)),
        {arm: spread["auroc"]["folds"] for arm, spread in result["spread"].items()},
    )
    found, gap = result["arms"]["grpo"]["metrics"]["auroc"], result["differences"]["grpo"]["auroc"]["stratified"]
    values = [written(found["stratified"]), cell_text(difference_cell(gap, METRICS["auroc"]))]
    values += [written(found[kind]) for kind in ("pooled", "fold_mean")]
    assert f"| AUROC | grpo | {' | '.join(values)} | {result['spread']['grpo']['auroc']['sd']:.3f} |" in text
    fold = result["folds"][1]
    counts = f"{fold['train']} | {fold['val']} | {fold['test']} ({fold['test_positives']})"
    assert f"| fold1 | {counts} | {folds['supervised']['fold1']:.3f} | {folds['grpo']['fold1']:.3f} |" in text
    assert "The held-out test split, 30 cores of 10 clusters by patient_id; nothing was chosen on it**" in text
    figure = forests.draw(result, METRICS)["00_auroc.svg"]
    drawn = {line.get_gid(): list(line.get_xdata()) for line in figure.axes[0].lines}  # of the last arm
    assert drawn["stratified"][0] == found["stratified"]["value"]
    assert drawn["pooled"][0] == found["pooled"]["value"]
    assert drawn["interval"] == found["stratified"]["ci95"]
    assert drawn["folds"] == list(folds["grpo"].values())


def test_the_page_opens_with_the_answer_and_holds_tables_figure_and_reasons(result):
    answer = state_grid_answer(EVALUATION, result)
    parameters = {"attention": {"note": "<b>"}}
    figures = {"00_auroc.svg": b"<svg id='folds'></svg>"}
    html = unmarked(nodes.render_page(EVALUATION, result, answer, figures, parameters))
    found, gap = result["arms"]["grpo"]["metrics"]["auroc"]["stratified"], result["differences"]["grpo"]["auroc"]["stratified"]
    assert answer["primary"]["after"] == found["value"]
    assert answer["primary"]["difference"] == gap["value"]
    assert (answer["split"], answer["seeds"], answer["examples"]) == ("out-of-fold", [0, 1], 60)
    first = html[: html.index("<nav")]
    assert f"{found['value']:.2f}" in first
    assert "out-of-fold cores of 20 patients, mean over 2 seeds" in first
    for text in (
        "<svg id='folds'>",
        "Out of fold</caption>",
        "fold1",
        "&lt;b&gt;",
        "held out: no interval",
        f"{gap['value']:+.3f}",
    ):
        assert text in html


def test_why_a_value_has_no_interval_is_said_of_held_out_cores_too(result):
    """Of the 10 held-out patients fewer than 10 have a core of each class: their AUROC has no interval, the reward has one."""
    held_out = CORES[CORES["patient_id"] >= "p20"]
    patients = min(held_out[held_out["label"] == label]["patient_id"].nunique() for label in (0, 1))
    assert patients < 10
    text = tables.summary(result, METRICS)
    assert f"- auroc of grpo, held out: no interval: {patients} clusters, fewer than 10" in text
    assert "- reward of grpo, held out" not in text
    assert "Only" not in text
    few = result | {"n": result["n"] | {"clusters": 9}}
    assert "- Only 9 clusters by patient_id are tested out of fold, fewer than 10" in tables.summary(few, METRICS)
    # The luck of the seeds is in the interval.
    for entry in (
        result["arms"]["grpo"]["metrics"]["reward"]["stratified"],
        result["differences"]["grpo"]["auroc"]["stratified"],
    ):
        assert entry["seeds"]["n"] == 2
        if entry["ci95"] is not None:
            (low, high), (inner, outer) = entry["ci95"], entry["ci95_clusters"]
            assert low <= inner <= outer <= high
        else:
            assert "too few seeds" in entry["reason"]


def test_an_arm_that_trained_longer_than_the_control_is_said_first(result):
    assert result["summary"] == []
    store = stored()
    for key, record in list(store.records.items()):
        count = 120 if key.startswith("grpo") else 30
        rows = [{"step": step, "split": "train", "samples": 8.0, "reward_calls": 8.0} for step in range(count)]
        store.keep(replace(record, metric_rows=rows))
    found = score(store)
    [sentence] = found["summary"]
    assert sentence.startswith("Unequal training: grpo had 120 steps against 30, 960 samples against 240, ")
    assert found["training"]["supervised"]["steps"] == 30
    lines = [line for line in nodes.write_summary(EVALUATION, found).splitlines() if line]
    assert lines[1] == sentence
    assert lines[0].startswith("# Cross-validation of attention")
