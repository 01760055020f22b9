import inspect
import io
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.validation.type_extractor import TypeExtractor
from pydantic import ValidationError
from rich.console import Console
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION
from tiny_replies import evaluation_params
from tiny_replies import make_predictions as make_replies

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms, read_commit
from grpo_pipeline.pipelines.evaluation.pipeline import create_pipeline
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.evaluation.unscored_samples import unscored_sentences
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.tables import arms_table, rivals_table
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.unscored_rewards import unscored_columns
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS
from grpo_pipeline.tracking.summary import comparison_parts

RULES = ["greedy", "uniform", "centre", "fixed", "none", "oracle", "shuffled"]
FIELDS = EVALUATION.model_dump() | {"resamples": 200}
PARAMS = EvaluationParams(**FIELDS)


@pytest.fixture(scope="module")
def document(arms):
    return compare_arms(PARAMS, "abc123", **arms)


def test_document_follows_the_schema_whatever_the_order_of_rows(document, arms):
    json.dumps(document, allow_nan=False)
    assert list(document) == [
        "task", "control", "split", "n", "seed", "commit", "headline", "interval",
        "arms", "differences", "policy_gain", "baseline_arm", "baselines", "own_minus_baseline", "own_minus_arms", "rules",
        "verdicts", "arm_verdicts", "moved", "bar", "summary", "run",
    ]  # fmt: skip
    assert document["n"].items() >= {"examples": 240, "clusters": 40, "cluster": "patient_id"}.items()
    assert (document["commit"], document["control"], document["seed"]) == ("abc123", "supervised", 0)
    assert {*document["arms"]} == {"supervised", "grpo"} == {*document["differences"], "supervised"}
    assert sorted(document["baselines"]) == sorted(document["own_minus_baseline"]) == sorted(RULES)
    found = [(section["metrics"], True) for name in ("arms", "baselines") for section in document[name].values()]
    found += [(section, False) for name in ("differences", "policy_gain") for section in document[name].values()]
    for entries, has_n in found:
        assert list(entries) == list(METRICS)
        for entry in entries.values():
            assert entry.keys() <= {"value", "ci95", "se", "n", "reason", "note", "undefined_resamples"}
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
    assert "its points are better" in text
    assert "supervised: " not in text


def with_start(rows, *, start="policy"):
    """Add the points that an arm began with: those of its policy, which has not moved then, or those of another rule."""
    return pd.concat([rows, rows[rows["rule"] == start].assign(rule="start")], ignore_index=True)


def bar_of(arms, **changes):
    document = compare_arms(PARAMS.model_copy(update=changes), "x", **arms)
    return document, {arm: {name: one["verdict"] for name, one in of.items()} for arm, of in document["bar"].items()}


def test_an_arm_that_learns_nothing_from_reward_gets_no_yes(predictions):
    """``prior`` has the points of grpo, far better than uniform ones, from its start on; grpo began with uniform points."""
    control, learned = predictions(seed=1, skill=0.0), predictions(seed=2, skill=1.0)
    arms = {"supervised": with_start(control), "prior": with_start(learned), "grpo": with_start(learned, start="uniform")}
    document, verdicts = bar_of(arms)
    assert verdicts["grpo"] == {"auroc": "met", "lesion_hit": "met"}
    assert verdicts["prior"] == {"auroc": "not shown", "lesion_hit": "not shown"}
    assert document["moved"] == {"supervised": False, "prior": False, "grpo": True}
    assert document["arms"]["prior"]["metrics"]["lesion_hit_ratio"]["ci95"][0] > 2, "it does not look like a success"
    assert document["bar"]["prior"]["auroc"]["conditions"]["start"]["value"] == 0.0
    said = [text for text in document["summary"] if text.startswith("prior") and ("reward" in text or "the rule" in text)]
    assert said == []
    assert "prior: its policy chooses as it did at its start: a fixed detector, not learned." in document["summary"]
    [lesions] = [text for text in document["summary"] if text.startswith("prior: points fall into lesions")]
    assert lesions.endswith("; a fixed detector, not learned.")
    yes = [text for text in document["summary"] if "did learning from reward work" in text]
    assert [text.partition("?")[2][:5] for text in yes] == [" Yes.", " Yes."]
    assert "the attention finds" not in " ".join(document["summary"])


def test_a_bar_that_the_control_meets_as_well_is_no_success(predictions):
    """Control and arm are one training: both are above start, shuffled and fixed rules, neither is above the other."""
    same = with_start(predictions(seed=2, skill=1.0), start="uniform")
    document, verdicts = bar_of({"supervised": same, "grpo": same})
    assert verdicts == {
        "supervised": {"auroc": "met", "lesion_hit": "met"},
        "grpo": {"auroc": "not shown", "lesion_hit": "not shown"},
    }
    said = [text for text in document["summary"] if text.startswith("grpo: did learning from reward work")]
    assert len(said) == 2
    assert all(text.endswith("supervised is above all the others as well: this is no success of the reward.") for text in said)


def test_an_arm_without_points_is_judged_by_the_rule_of_none_beside_the_others(predictions):
    arms = {"supervised": predictions(seed=1, skill=0.0), "nothing": predictions(seed=3, skill=0.0)}
    arms = {arm: with_start(rows) for arm, rows in arms.items()} | {"grpo": with_start(predictions(seed=2), start="uniform")}
    document, verdicts = bar_of(arms, rules={"nothing": "none"})
    rows = arms["nothing"].query("rule == 'none'")
    theirs = roc_auc_score(rows["label"], rows["prob"])
    assert document["arms"]["nothing"]["metrics"]["auroc"]["value"] == pytest.approx(theirs)
    assert document["rules"] == {"supervised": "policy", "nothing": "none", "grpo": "policy"}
    own = document["arms"]["grpo"]["metrics"]["auroc"]["value"]
    assert document["own_minus_arms"]["nothing"]["auroc"]["value"] == pytest.approx(own - theirs)
    assert document["own_minus_arms"]["supervised"] == document["differences"]["grpo"]
    assert document["arm_verdicts"]["nothing"]["auroc"] == "better"
    assert "nothing" not in verdicts | document["moved"] | document["policy_gain"]
    [beside] = [text for text in document["summary"] if "an arm without any points" in text]
    assert beside.startswith("grpo: AUROC minus that of nothing, an arm without any points: +")
    assert beside.endswith(": points help.")
    assert not [text for text in document["summary"] if text.startswith("nothing: points")]
    with pytest.raises(ValueError, match=r"evaluation.rules.nothing must be one of the rules policy, .*, got 'nowhere'"):
        bar_of(arms, rules={"nothing": "nowhere"})


def steps(count, **columns):
    train = pd.DataFrame({"step": range(count), "split": "train", "samples": 32.0, "reward_calls": 32.0} | columns)
    return pd.concat([train, pd.DataFrame({"step": [count - 1], "split": ["val"]})], ignore_index=True)


def test_an_arm_that_trained_longer_than_its_control_is_not_called_a_success(predictions):
    """120 steps against 30, as an own ``training.epochs`` gives, are said first."""
    arms = {"supervised": with_start(predictions(seed=1, skill=0.0)), "grpo": with_start(predictions(seed=2), start="uniform")}
    taught = {"policy/loss": 0.5}
    document, verdicts = bar_of(arms | {"supervised__training": steps(30), "grpo__training": steps(120, **taught)})
    assert document["training"] == {
        "supervised": {"steps": 30, "samples": 960, "reward_calls": 960, "learns_from_reward": False},
        "grpo": {"steps": 120, "samples": 3840, "reward_calls": 3840, "learns_from_reward": True},
    }
    assert document["summary"][0] == (
        "Unequal training: grpo had 120 steps against 30, 3,840 samples against 960, 3,840 reward calls against 960 of the "
        "control supervised: more steps alone may explain a difference."
    )
    assert verdicts["grpo"] == {"auroc": "not shown", "lesion_hit": "not shown"}
    fair, verdicts = bar_of(arms | {"supervised__training": steps(30), "grpo__training": steps(30, **taught)})
    assert not fair["summary"][0].startswith("Unequal")
    assert verdicts["grpo"] == {"auroc": "met", "lesion_hit": "met"}


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
    assert gap["uniform"] == document["policy_gain"]["grpo"]  # the chance rule of these parameters
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


def of_patients(arms, names):
    return {arm: rows[rows["patient_id"].isin(names)] for arm, rows in arms.items()}


def test_of_a_few_clusters_nothing_is_called_better_or_worse_anywhere(arms):
    """On the page, the terminal, in the document: no interval, and so no mark, verdict, bar or word."""
    arms = {arm: with_start(rows, start="uniform") for arm, rows in arms.items()}
    names, suite = sorted(arms["grpo"]["patient_id"].unique()), build_suite("attention", {})
    for count, is_few in ((9, True), (40, False)):
        document = compare_arms(PARAMS, "abc123", **of_patients(arms, names[:count]))
        first, *others = document["summary"]
        assert first.startswith(f"Only {count} clusters by patient_id are held out, fewer than 10: there are no inter") == is_few
        sections = [
            *document["differences"].values(),
            *document["policy_gain"].values(),
            *document["own_minus_baseline"].values(),
        ]
        sections += [found["metrics"] for found in (*document["arms"].values(), *document["baselines"].values())]
        assert any(entry["ci95"] for section in sections for entry in section.values()) != is_few
        reward = document["arms"]["grpo"]["metrics"]["reward"]
        assert ("not_covered" in document["interval"]) != is_few
        assert (reward.get("reason") == "no interval: 9 clusters, fewer than 10") == is_few
        words = find_task("attention").words
        shown = [arms_table(document, suite.metrics, words=words), rivals_table(document, suite, words=words)]
        assert any(cell.tone for table in shown for row in table.rows for cell in row) != is_few
        console = Console(file=io.StringIO(), width=200)
        for part in comparison_parts(document, {}):
            console.print(part)
        said = {*re.findall(r"better|worse|missed|met\b|above|below|finds|avoids", " ".join(others) + console.file.getvalue())}
        assert (said <= {"better", "worse"} and not {*re.findall("better|worse", " ".join(others))}) == is_few
        told = {verdict for verdicts in document["verdicts"].values() for verdict in verdicts.values()}
        assert (told == {"no statement"}) == is_few
        judged = {entry["verdict"] for of_arm in document["bar"].values() for entry in of_arm.values()}
        assert (judged == {"no statement"}) == is_few
    ten = compare_arms(PARAMS, "abc123", **of_patients(arms, names[:10]))
    assert ten["arms"]["grpo"]["metrics"]["reward"]["ci95"]
    assert "Only" not in ten["summary"][0]


def test_what_rests_on_few_clusters_of_one_class_has_no_interval(arms):
    """Of 40 patients 9 have a positive core: what ranks or reads positives has no interval, what reads all has one."""
    rows = arms["grpo"]
    sick = rows.groupby("patient_id")["label"].max()
    names = [*sick[sick == 1].index[:9], *sick[sick == 0].index]
    healthy = sick[sick == 0].index
    assert len(healthy) >= 1
    more = of_patients(arms, names)
    grown = {
        arm: pd.concat([table, *(renamed(table[table["patient_id"].isin(healthy)], n) for n in range(12))])
        for arm, table in more.items()
    }
    metrics = compare_arms(PARAMS, "abc123", **grown)["arms"]["grpo"]["metrics"]
    few = {name for name, entry in metrics.items() if "9 clusters, fewer than 10" in entry.get("reason", "")}
    assert {"auroc", "average_precision", "auroc_patient", "sensitivity_at_80_specificity", "lesion_hit"} <= few
    assert {"brier", "ece", "reward"}.isdisjoint(few)


def renamed(rows, number):
    return rows.assign(core_id=rows["core_id"] + f"-{number}", patient_id=rows["patient_id"] + f"-{number}")


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
    bad = {"resample": 10, "resamples": 5, "seed": -1, "metric_options": {"calibration_bins": "ten"}}
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
    assert any(said[0] in str(part) for part in comparison_parts(document, {})), "it is not on the terminal"
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
