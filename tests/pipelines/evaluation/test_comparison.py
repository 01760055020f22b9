import inspect
import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.validation.type_extractor import TypeExtractor
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION
from tiny_replies import evaluation_params
from tiny_replies import make_predictions as make_replies

from grpo_pipeline.pipelines.evaluation.comparison import unscored_sentences
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms, read_commit
from grpo_pipeline.pipelines.evaluation.pipeline import create_pipeline
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.metric import unscored_columns
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS
from grpo_pipeline.tracking.summary import comparison_tables

RULES = ["greedy", "uniform", "centre", "fixed", "none", "oracle", "shuffled"]
FIELDS = EVALUATION.model_dump() | {"resamples": 200, "max_undefined": 0.1}
PARAMS = EvaluationParams(**FIELDS)


@pytest.fixture(scope="module")
def document(arms):
    return compare_arms(PARAMS, "abc123", **arms)


def test_document_follows_the_schema_whatever_the_order_of_rows(document, arms):
    json.dumps(document, allow_nan=False)
    assert list(document) == [
        "task", "control", "split", "n", "seed", "commit", "headline", "interval",
        "arms", "differences", "policy_gain", "baseline_arm", "baselines", "own_minus_baseline",
        "verdicts", "bar", "summary", "run",
    ]  # fmt: skip
    assert document["n"] == {"examples": 240, "clusters": 40, "cluster": "patient_id"}
    assert (document["commit"], document["control"], document["seed"]) == ("abc123", "supervised", 0)
    assert {*document["arms"]} == {"supervised", "grpo"} == {*document["differences"], "supervised"}
    assert sorted(document["baselines"]) == sorted(document["own_minus_baseline"]) == sorted(RULES)
    found = [(section["metrics"], True) for name in ("arms", "baselines") for section in document[name].values()]
    found += [(section, False) for name in ("differences", "policy_gain") for section in document[name].values()]
    for entries, has_n in found:
        assert list(entries) == list(METRICS)
        for entry in entries.values():
            assert entry.keys() <= {"value", "ci95", "se", "n", "reason", "undefined_resamples"}
            assert ("n" in entry) == has_n
            assert entry["reason"] if entry["ci95"] is None else entry["ci95"][0] <= entry["value"] <= entry["ci95"][1]
    shuffled = {arm: rows.sample(frac=1.0, random_state=i) for i, (arm, rows) in enumerate(arms.items())}
    assert compare_arms(PARAMS, "abc123", **shuffled) == document


def test_values_differences_and_gains_belong_to_the_arm_and_the_rule(document, arms):
    def auroc(arm, rule):
        rows = arms[arm][arms[arm]["rule"] == rule]
        return pytest.approx(roc_auc_score(rows["label"], rows["prob"]))

    for arm in arms:
        assert document["arms"][arm]["metrics"]["auroc"]["value"] == auroc(arm, "policy")
    for rule, scores in document["baselines"].items():
        assert scores["metrics"]["auroc"]["value"] == auroc("grpo", rule)
    arm, control = (document["arms"][name]["metrics"] for name in ("grpo", "supervised"))
    uniform = document["baselines"]["uniform"]["metrics"]
    for name in ("auroc", "reward", "lesion_hit", "brier"):
        assert document["differences"]["grpo"][name]["value"] == pytest.approx(arm[name]["value"] - control[name]["value"])
        assert document["policy_gain"]["grpo"][name]["value"] == pytest.approx(arm[name]["value"] - uniform[name]["value"])
    assert document["policy_gain"]["grpo"]["reward"]["ci95"][0] > 0
    text = "\n".join(document["summary"])
    assert f"grpo: points fall into lesions {arm['lesion_hit_ratio']['value']:.1f} times as often as uniform points" in text
    assert "its points are better than chance" in text
    assert "supervised: " not in text


def test_what_one_would_try_instead_is_compared_on_the_same_cores(arms):
    """Two classifiers without points or reward, in another order of rows: paired with the policy, named in the summary."""
    own = arms["grpo"][arms["grpo"]["rule"] == "policy"]
    rng, label = np.random.default_rng(0), own["label"].to_numpy()
    nothing = dict.fromkeys(("reward", "reward_class", "reward_heatmap", "lesion_hit", "lesion_coverage", "points_used"), np.nan)
    perfect = own.assign(rule="perfect", prob=label * 0.8 + 0.1, **nothing, dice=np.where(label == 1, 0.8, np.nan))
    noise = own.assign(rule="noise", prob=rng.random(len(own)), **nothing).sample(frac=1.0, random_state=1)
    instead = pd.concat([noise, perfect])
    document = compare_arms(PARAMS, "x", **arms, __instead=instead)
    gap = document["own_minus_baseline"]
    for name, rows in (("perfect", perfect), ("noise", noise)):
        theirs = roc_auc_score(rows["label"], rows["prob"])
        assert document["baselines"][name]["metrics"]["auroc"]["value"] == pytest.approx(theirs)
        assert document["baselines"][name]["metrics"]["reward"]["value"] is None
        assert gap[name]["auroc"]["value"] == pytest.approx(roc_auc_score(own["label"], own["prob"]) - theirs)
    # What a baseline alone has, such as the mask that it draws, stands beside it; the others have none.
    assert document["baselines"]["perfect"]["metrics"]["dice"]["value"] == pytest.approx(0.8)
    assert document["baselines"]["noise"]["metrics"]["dice"]["value"] is None
    assert document["arms"]["grpo"]["metrics"]["dice"]["value"] is None
    assert gap["uniform"] == document["policy_gain"]["grpo"]
    [sentence] = [text for text in document["summary"] if "what one would try instead, by AUROC" in text]
    assert document["verdicts"]["perfect"] == {"auroc": "worse", "lesion_hit": "no statement"}
    assert "oracle" not in sentence
    better, _, worse = sentence.partition("worse than")
    assert "noise" in better
    assert "perfect" in worse
    for kind, sign in (("better than", 1), ("worse than", -1)):
        named = sentence.partition(kind)[2].partition(";")[0].rstrip(".").split(", ")
        for rule in (name.strip() for name in named if name):
            low, high = gap[rule]["auroc"]["ci95"]
            assert min(sign * low, sign * high) > 0
    with pytest.raises(ValueError, match="predictions of noise must hold the same cores"):
        compare_arms(PARAMS, "x", **arms, __instead=noise.iloc[1:])


def test_interval_is_that_of_a_naive_loop_over_repeated_rows(arms):
    params = PARAMS.model_copy(update={"resamples": 20})
    rows = arms["grpo"][arms["grpo"]["rule"] == "policy"].sort_values("core_id")
    weights = cluster_weights(rows["patient_id"], resamples=20, seed=0).astype(int)
    drawn = [rows.loc[rows.index.repeat(counts)] for counts in weights]
    naive = [roc_auc_score(table["label"], table["prob"]) for table in drawn]
    entry = compare_arms(params, "abc123", **arms)["arms"]["grpo"]["metrics"]["auroc"]
    assert entry["ci95"] == pytest.approx(list(np.quantile(naive, [0.025, 0.975])), abs=1e-12)


def test_single_class_split_is_undefined_with_a_reason(arms):
    benign = {arm: rows.assign(label=0, grade_group=0.0, lesion_hit=np.nan) for arm, rows in arms.items()}
    document = compare_arms(PARAMS, "abc123", **benign)
    json.dumps(document, allow_nan=False)
    metrics = document["arms"]["grpo"]["metrics"]
    reason = "undefined: needs at least one positive and one negative core"
    assert metrics["auroc"] == {"value": None, "ci95": None, "n": 240, "reason": reason}
    assert document["differences"]["grpo"]["auroc"]["value"] is None
    assert metrics["lesion_hit"]["n"] == 0
    assert metrics["brier"]["ci95"][0] > 0
    assert any("no statement (undefined" in sentence for sentence in document["summary"])


def test_a_few_clusters_are_said_before_anything_is_called_better(arms):
    for count, is_said in ((9, True), (10, False)):
        few = {arm: rows[rows["patient_id"].isin(sorted(rows["patient_id"].unique())[:count])] for arm, rows in arms.items()}
        first = compare_arms(PARAMS, "abc123", **few)["summary"][0]
        said = f"Only {count} clusters by patient_id are held out: intervals are too narrow, and nothing is shown."
        assert first.startswith(said) == is_said


def test_tables_that_do_not_belong_together_are_refused(arms):
    for broken, message in (
        (lambda rows: rows[rows["core_id"] != "core0003"], "of grpo / policy must hold the same cores .* 'core0003'"),
        (lambda rows: pd.concat([rows, rows.head(1)]), "of grpo must hold a core once per rule, got 'core0000' twice"),
        (lambda rows: rows.drop(columns="reward"), "of grpo must have the columns .* got none named 'reward'"),
        (lambda rows: rows[rows["rule"] != "policy"], r"of grpo must hold the rule 'policy', got \['centre'"),
        (lambda rows: rows.assign(prob=rows["prob"].where(rows.index != 5)), "prob .* grpo must be finite, .* 'core0005'"),
        (lambda rows: rows.assign(label=1 - rows["label"]), "label of core 'core0000' must be the same in all arms"),
        (lambda rows: rows.assign(patient_id="x"), "patient_id of core 'core0000' must be the same in all arms"),
        (lambda rows: rows.iloc[:0], "predictions of grpo must hold at least one row"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_arms(PARAMS, "abc123", **{**arms, "grpo": broken(arms["grpo"])})


def test_bad_parameters_are_refused(arms):
    bad = {"resample": 10, "resamples": 5, "seed": -1, "max_undefined": 1.0, "metric_options": {"calibration_bins": "ten"}}
    for name, value in bad.items():
        with pytest.raises(ValidationError, match=name):
            EvaluationParams(**FIELDS | {name: value})
    for field in ("control", "baseline_arm"):
        with pytest.raises(ValueError, match=rf"evaluation.{field} must be one of the arms supervised, grpo, got 'gpro'"):
            compare_arms(PARAMS.model_copy(update={field: "gpro"}), "abc123", **arms)


def test_the_pipeline_has_typed_parameters_and_the_commit_is_that_of_the_repository(tmp_path, monkeypatch):
    pipeline = create_pipeline("attention", ["supervised", "grpo"])
    names = ("predictions", "metric_rows", "showcase")
    tables = {f"attention.{arm}.{table}" for arm in ("supervised", "grpo") for table in names}
    assert pipeline.inputs() == {"params:attention.evaluation", *tables}
    assert TypeExtractor({"x": pipeline}).extract_types_from_pipelines() == {"attention.evaluation": EvaluationParams}
    place = str(Path(inspect.getfile(read_commit)).parent)  # of the code that runs, which need not be where the tests are
    head = subprocess.run(["git", "-C", place, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    monkeypatch.chdir(tmp_path)
    assert read_commit() == (head.stdout.strip() if head.returncode == 0 else "unknown")


REPLIES = evaluation_params(resamples=40)


def lost_predictions(lost):
    """Return rows of 4 samples each, of which the reward ``kind`` leaves ``lost`` in each row without a value."""
    rows = make_replies()
    values = np.ones((len(rows), 4))
    values[:, :lost] = np.nan
    return rows.assign(**unscored_columns({"kind": values}, np.ones(values.shape, dtype=bool)))


def training_rows(*fractions):
    """Return the metric rows of steps with 8 samples each; NaN where all of them were scored."""
    train = {"step": range(len(fractions)), "split": "train", "reward/kind/mean": 0.5}
    lost = {"reward/kind/unscored_fraction": fractions, "reward/kind/unscored_count": [8 * one for one in fractions]}
    val = pd.DataFrame({"step": [0], "split": "val", "reward/kind/mean": 0.5})
    return pd.concat([pd.DataFrame(train | lost), val], ignore_index=True)


def test_counts_and_shares_are_those_of_the_arm_and_what_was_lost_is_said():
    """Without rewards of the users' nothing is there."""
    silent = training_rows(np.nan)
    silent.loc[silent["split"] == "train", "reward/kind/mean"] = np.nan  # an arm that draws no samples
    training = {"grpo__training": training_rows(np.nan, 0.5, 0.25, np.nan), "supervised__training": silent}
    document = compare_arms(REPLIES, "abc", supervised=lost_predictions(0), grpo=lost_predictions(1), **training)
    assert document["unscored"] == {
        "supervised": {"kind": {"test": {"count": 0.0, "share": 0.0}}},
        "grpo": {"kind": {"test": {"count": 48.0, "share": 0.25}, "training": {"count": 6.0, "share": 0.1875}}},
    }
    said = list(unscored_sentences(document["unscored"]))
    assert said == [document["summary"][-1]]
    assert said[0].startswith("grpo: the reward kind gave no value for 48 samples (25.0%) in test and 6 samples (18.8%) in train")
    assert any(said[0] in str(part) for part in comparison_tables(document)), "it is not on the terminal"
    found = compare_arms(REPLIES, "abc", supervised=make_replies(), grpo=make_replies(), grpo__training=training_rows(0.5))
    assert "unscored" not in found

    # What was not asked is not missing.
    columns = unscored_columns({"kind": np.array([[np.nan, 1.0], [np.nan, np.nan]])}, np.array([[False, True], [True, True]]))
    assert (columns["asked_kind"].tolist(), columns["unscored_kind"].tolist()) == ([1, 2], [0, 2])


def test_what_is_the_same_for_every_input_is_in_the_document_and_its_summary(arms):
    rng = np.random.default_rng(0)
    alive, dead = rng.random((12, 8, 8)), np.broadcast_to(rng.random((8, 8)), (12, 8, 8))
    shown = {"grpo__shown": {"heatmap": dead, "attention": alive}, "supervised__shown": {"heatmap": alive, "attention": alive}}
    document = compare_arms(PARAMS, "abc", **arms, **shown)
    found = {arm: {name: entry["is_same"] for name, entry in outputs.items()} for arm, outputs in document["sameness"].items()}
    assert found["grpo"] == {"heatmap": True, "attention map": False}
    assert not any(found["supervised"].values())
    json.dumps(document, allow_nan=False)
    said = [sentence for sentence in document["summary"] if "the same everywhere" in sentence]
    assert said == [
        "grpo: the heatmap is the same everywhere: do not read it (100.0% of its variance is the same for all 12 inputs that are "
        "shown)."
    ]
    assert compare_arms(PARAMS, "abc", **arms) == {k: v for k, v in document.items() if k != "sameness"} | {
        "summary": document["summary"][:-1]
    }
