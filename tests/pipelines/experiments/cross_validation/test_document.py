"""Out-of-fold rows -> the result: against scikit-learn fold by fold, and what happens when something is missing."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION, make_params, plan_cores, task_parameters
from tiny_grid import Memory

from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.experiments.cross_validation import nodes, tables
from grpo_pipeline.pipelines.experiments.cross_validation.choice import nothing_to_choose, outer_plan
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import ensemble
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, TrialHeader, TrialRecord
from grpo_pipeline.tasks.attention.metrics import REQUIRED

METRICS = build_suite("attention", {}).metrics
PARAMS = make_params("kfold", folds=3, seeds=[0, 1], val_share=0.3)
SETTINGS = nodes.arrange_arms(PARAMS, EVALUATION, task_parameters())


def make_cores():
    """90 cores of 30 patients in two centers; patients 20 and above are held out."""
    number = np.repeat(np.arange(30), 3)
    label = np.random.default_rng(0).integers(0, 2, 90)
    return pd.DataFrame(
        {
            "core_id": [f"c{i:02d}" for i in range(90)],
            "patient_id": [f"p{n:02d}" for n in number],
            "center": np.where(number % 2, "b", "a"),
            "label": label,
            "involvement": np.where(label == 1, 0.4, 0.0),
            "grade_group": 3.0 * label,
        }
    )


CORES = make_cores()
PLAN = plan_cores(CORES, {"test": CORES.loc[CORES["patient_id"] >= "p20", "core_id"].tolist()}, PARAMS)


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


@pytest.mark.parametrize("arm", ["supervised", "grpo"])
def test_values_are_those_of_scikit_learn_averaged_over_the_seeds(result, arm):
    store, stratified, pooled, means = stored(grpo=2.0), [], [], []
    for seed in (0, 1):
        parts = list(by_fold(store, arm, seed))
        scores = [roc_auc_score(part["label"], part["prob"]) for part in parts]
        pairs = [part["label"].sum() * (1 - part["label"]).sum() for part in parts]
        whole = pd.concat(parts)
        stratified.append(np.average(scores, weights=pairs))
        pooled.append(roc_auc_score(whole["label"], whole["prob"]))
        means.append(scores)
    found = result["arms"][arm]["metrics"]["auroc"]
    assert found["stratified"]["value"] == pytest.approx(np.mean(stratified))
    assert found["pooled"]["value"] == pytest.approx(np.mean(pooled))
    assert found["fold_mean"]["value"] == pytest.approx(np.mean(means))
    spread = result["spread"][arm]["auroc"]
    assert list(spread["folds"].values()) == pytest.approx(np.mean(means, axis=0))
    assert spread["sd"] == pytest.approx(np.std(np.mean(means, axis=0), ddof=1))


def test_differences_are_paired(result):
    gap = result["differences"]["grpo"]
    for kind in ("stratified", "pooled", "fold_mean"):
        arms = {arm: result["arms"][arm]["metrics"]["auroc"][kind]["value"] for arm in ("supervised", "grpo")}
        assert gap["auroc"][kind]["value"] == pytest.approx(arms["grpo"] - arms["supervised"])
    # The same noise in both arms and a reward that is 1 higher for each core: nothing is left to vary.
    assert gap["reward"]["stratified"]["value"] == pytest.approx(1.0)
    assert gap["reward"]["stratified"]["ci95"] == pytest.approx([1.0, 1.0])
    same = score(stored(grpo=1.0))["differences"]["grpo"]["auroc"]["stratified"]
    assert (same["value"], same["ci95"]) == (0.0, [0.0, 0.0])


def test_the_held_out_cores_are_read_from_the_mean_probability_and_model_by_model(result):
    store, together, single = stored(grpo=2.0), [], []
    for seed in (0, 1):
        tables_ = [store.predictions(f"grpo.seed{seed}.fold{number}") for number in range(3)]
        held = [rows[(rows["rule"] == "policy") & rows["core_id"].isin(PLAN.held_out)].sort_values("core_id") for rows in tables_]
        labels = held[0]["label"]
        together.append(roc_auc_score(labels, np.mean([rows["prob"].to_numpy() for rows in held], axis=0)))
        single += [roc_auc_score(labels, rows["prob"]) for rows in held]
    found = result["held_out"]["arms"]["grpo"]["metrics"]["auroc"]
    assert found["ensemble"]["value"] == pytest.approx(np.mean(together))
    assert found["single_models"]["value"] == pytest.approx(np.mean(single))
    assert result["held_out"]["n"] == {"examples": 30, "clusters": 10, "cluster": "patient_id"}


def test_the_mean_over_models_leaves_what_belongs_to_the_core():
    rows = collect(stored()).held_out["grpo"][0]
    together = ensemble(rows, "core_id").set_index("core_id")
    assert together["involvement"].to_dict() == rows.groupby("core_id")["involvement"].first().to_dict()
    assert together.loc["c60", "prob"] == pytest.approx(rows.loc[rows["core_id"] == "c60", "prob"].mean())
    assert (together["rule"] == "policy").all()
    assert "fold" not in together


def test_a_seed_with_a_missing_fold_is_left_out_and_named():
    lost = score(stored(without=["grpo.seed1.fold2"], failed=["grpo.seed0.fold0"]))
    assert lost["missing"] == {"grpo.seed0.fold0": "out of memory", "grpo.seed1.fold2": "not trained"}
    assert lost["seeds"] == {"supervised": [0, 1], "grpo": []}
    assert list(lost["arms"]) == ["supervised"]
    some = score(stored(without=["supervised.seed1.fold2"]))
    assert some["seeds"] == {"supervised": [0], "grpo": [0, 1]}
    # Paired over the seeds that both have: the arms are alike there, though grpo's mean is over two seeds.
    assert some["differences"]["grpo"]["auroc"]["stratified"]["value"] == 0.0
    assert "grpo.seed0.fold0 is missing, and with it the other folds of its arm and seed: out of memory" in tables.summary(
        lost, METRICS
    )


def test_without_a_complete_seed_of_the_control_there_is_no_result():
    with pytest.raises(
        CompareError, match="control supervised must have a seed whose folds all finished, .*seed0.fold1: not trained"
    ):
        collect(stored(without=["supervised.seed0.fold1", "supervised.seed1.fold0"]))


def test_cells_of_other_folds_are_refused():
    store = stored()
    record = store.records["grpo.seed0.fold1"]
    other = store.records["grpo.seed0.fold2"].predictions
    store.records["grpo.seed0.fold1"] = TrialRecord(record.header, other)
    with pytest.raises(ValueError, match=r"predictions of grpo.seed0.fold1 must hold the 51 cores .* the folds have changed"):
        collect(store)


def test_the_result_is_plain_json_and_the_rows_one_table(result):
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    rows = tables.long_predictions(collect(stored()))
    assert rows.groupby(["arm", "seed", "part"]).size().to_dict() == {
        (arm, seed, part): n
        for arm in ("grpo", "supervised")
        for seed in (0, 1)
        for part, n in (("out_of_fold", 60), ("held_out", 90))
    }
    assert set(rows["rule"]) == {"policy"}


def test_the_summary_says_what_the_result_says(result):
    text = tables.summary(result, METRICS)
    found = result["arms"]["grpo"]["metrics"]["auroc"]
    gap = result["differences"]["grpo"]["auroc"]["stratified"]
    trials = [
        tables.text(found["stratified"]),
        tables.text(gap, sign="+"),
        tables.text(found["pooled"]),
        tables.text(found["fold_mean"]),
    ]
    assert f"| AUROC | grpo | {' | '.join(trials)} | {result['spread']['grpo']['auroc']['sd']:.3f} |" in text
    fold, values = result["folds"][1], [result["spread"][arm]["auroc"]["folds"]["fold1"] for arm in ("supervised", "grpo")]
    sizes = f"{fold['train']} | {fold['val']} | {fold['test']} ({fold['test_positives']})"
    assert f"| fold1 | {sizes} | {values[0]:.3f} | {values[1]:.3f} |" in text
    assert "The held-out test split, 30 cores of 10 clusters by patient_id; nothing was chosen on it:" in text


def test_the_figure_shows_value_interval_and_folds(result):
    axes = tables.draw(result, METRICS).axes[0]
    drawn = {line.get_gid(): line for line in axes.lines}  # of the last arm, grpo
    found = result["arms"]["grpo"]["metrics"]["auroc"]
    assert drawn["stratified"].get_xdata()[0] == found["stratified"]["value"]
    assert drawn["pooled"].get_xdata()[0] == found["pooled"]["value"]
    assert list(drawn["interval"].get_xdata()) == found["stratified"]["ci95"]
    assert list(drawn["folds"].get_xdata()) == list(result["spread"]["grpo"]["auroc"]["folds"].values())
