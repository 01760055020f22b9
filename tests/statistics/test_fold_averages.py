"""Out-of-fold predictions pooled: against naive loops and scikit-learn, and where pooling scores of several models goes wrong."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.fold_averages import average_folds, spread_over_folds, stratify
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS


def rows(seed=0, *, patients=40, folds=4):
    """Cores of patients in folds; scores are rounded so that there are ties, and each fold has its own scale."""
    rng = np.random.default_rng(seed)
    number = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
    label = (rng.random(len(number)) < 0.4).astype(int)
    score = 1 / (1 + np.exp(-(label + rng.normal(size=len(number)) + 2.0 * (number % folds) - 3.0)))
    names = {"patient_id": [f"p{n:02d}" for n in number], "fold": [f"fold{n % folds}" for n in number]}
    columns = {"label": label, "prob": score.round(1), "reward": rng.normal(size=len(number))}
    hit = np.where(label == 1, rng.random(len(number)), np.nan)
    return pd.DataFrame(names | columns | {"lesion_hit": hit, "lesion_coverage": rng.uniform(0.05, 0.2, len(number))})


def value(metric, table):
    return float(metric(table, np.ones((1, len(table))))[0])


def won_pairs(table, *, inside_folds):
    """Share of won pairs (a tie wins half) over all pairs, those of one fold alone or all of them."""
    pairs = table[table["label"] == 1].merge(table[table["label"] == 0], how="cross")
    pairs = pairs[pairs["fold_x"] == pairs["fold_y"]] if inside_folds else pairs
    return ((pairs["prob_x"] > pairs["prob_y"]) + 0.5 * (pairs["prob_x"] == pairs["prob_y"])).mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_stratified_auroc_is_the_share_of_won_pairs_inside_the_folds(seed):
    table = rows(seed)
    patients = table.groupby("patient_id").agg(prob=("prob", "max"), label=("label", "max"), fold=("fold", "first")).reset_index()
    for name, pairs in (("auroc", table), ("auroc_patient", patients)):
        assert value(stratify(METRICS[name]), table) == pytest.approx(won_pairs(pairs, inside_folds=True), abs=1e-12)
    assert value(METRICS["auroc"], table) == pytest.approx(won_pairs(table, inside_folds=False), abs=1e-12)


def test_folds_are_those_of_scikit_learn_weighted_by_pairs_or_by_positives():
    table = rows(2)
    parts = [part for _, part in table.groupby("fold")]
    positives, negatives = (np.array([(part["label"] == label).sum() for part in parts]) for label in (1, 0))
    for name, score, weights in [
        ("auroc", roc_auc_score, positives * negatives),
        ("average_precision", average_precision_score, positives),
    ]:
        scores = [score(part["label"], part["prob"]) for part in parts]
        assert list(spread_over_folds(METRICS[name], [table]).values.values()) == pytest.approx(scores)
        assert value(stratify(METRICS[name]), table) == pytest.approx(np.average(scores, weights=weights))
        assert value(average_folds(METRICS[name]), table) == pytest.approx(np.mean(scores))


def test_a_fold_with_one_class_counts_nothing_and_is_named():
    table = rows(7)
    single = table.assign(label=np.where(table["fold"] == "fold2", 0, table["label"]))
    rest, nothing = single[single["fold"] != "fold2"], table.assign(label=1)
    for combine in (stratify, average_folds):
        assert value(combine(METRICS["auroc"]), single) == pytest.approx(value(combine(METRICS["auroc"]), rest))
        assert np.isnan(value(combine(METRICS["auroc"]), nothing))
    document = spread_over_folds(METRICS["auroc"], [single]).document()
    assert (document["undefined_folds"], document["folds"]["fold2"]) == (["fold2"], None)
    known = [roc_auc_score(part["label"], part["prob"]) for _, part in rest.groupby("fold")]
    assert (document["sd"], document["min"], document["max"]) == pytest.approx((np.std(known, ddof=1), min(known), max(known)))
    assert spread_over_folds(METRICS["auroc"], [nothing]).document()["sd"] is None


@pytest.mark.parametrize("name", ["auroc", "auroc_patient", "average_precision", "lesion_hit_ratio", "reward"])
def test_a_resample_is_the_metric_of_the_repeated_rows(name):
    table = rows(9)
    weights = cluster_weights(table["patient_id"], resamples=4, seed=0)
    found = stratify(METRICS[name])(table, weights)
    for counts, one in zip(weights, found, strict=True):
        repeated = table.loc[table.index.repeat(counts.astype(int))].reset_index(drop=True)
        if name == "auroc_patient":  # each copy of a patient is a patient
            copies = [table[counts > copy].assign(patient_id=lambda t, c=copy: t["patient_id"] + f"/{c}") for copy in range(9)]
            repeated = pd.concat(copies, ignore_index=True)
        assert one == pytest.approx(value(stratify(METRICS[name]), repeated), abs=1e-12)


def test_a_folds_value_is_the_mean_over_the_seeds():
    seeds = [rows(seed) for seed in (0, 1)]
    single = [spread_over_folds(METRICS["reward"], [table]).values for table in seeds]
    both = spread_over_folds(METRICS["reward"], seeds).values
    assert both == pytest.approx({fold: (single[0][fold] + single[1][fold]) / 2 for fold in single[0]})
