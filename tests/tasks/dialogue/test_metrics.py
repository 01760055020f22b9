import json
import math

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from tiny_replies import PARTS, evaluation_params, make_examples, make_predictions

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.dialogue import scores as diversity
from grpo_pipeline.tasks.dialogue.metrics import METRICS, RULES, build_suite
from grpo_pipeline.tasks.dialogue.scores import bleu_counts, corpus_bleu
from grpo_pipeline.tasks.dialogue.warning_signs import TRIVIAL_RULES

PARAMS = evaluation_params(resamples=40)


@pytest.fixture(scope="module")
def arms():
    return {"supervised": make_predictions(skill=0.4, seed=1), "grpo": make_predictions(skill=0.9, seed=2)}


@pytest.fixture(scope="module")
def document(arms):
    return compare_arms(PARAMS, "abc", **arms)


def rows_of(table, rule="policy"):
    return table[table["rule"] == rule].sort_values("example_id")


def test_the_document_holds_every_metric_of_every_arm_and_rule(document):
    json.dumps(document, allow_nan=False)
    assert document["n"] == {"examples": 48, "clusters": 12, "cluster": "persona_id"}
    assert list(document["baselines"]) == [rule for rule in RULES if rule != "policy"]
    for scores in (*document["arms"].values(), *document["baselines"].values()):
        assert list(scores["metrics"]) == list(METRICS)
    assert document["differences"]["grpo"]["reward"]["ci95"][0] > 0
    assert document["policy_gain"]["grpo"]["f1"]["ci95"][0] > 0


def test_values_are_those_of_the_rows(document, arms):
    rows, found = rows_of(arms["grpo"]), document["arms"]["grpo"]["metrics"]
    for name in ("f1", "rouge_1", "rouge_2", "rouge_l", "length", "reward", *(f"reward_{part}" for part in PARTS)):
        assert found[name]["value"] == pytest.approx(rows[name].mean(), rel=1e-12)
    answers = list(make_examples()["answers"])
    assert found["bleu"]["value"] == pytest.approx(corpus_bleu(bleu_counts(list(rows["reply"]), answers)))
    for n in (1, 2):
        assert found[f"distinct_{n}"]["value"] == diversity.distinct(list(rows["reply"]), n=n)
    assert found["perplexity"]["value"] == pytest.approx(math.exp(8 / 6))


def test_perplexity_is_of_all_tokens_and_not_a_mean_of_perplexities():
    rows = make_predictions()
    rows = rows[rows["rule"] == "policy"].assign(
        reference_nll=lambda t: np.arange(len(t)), reference_tokens=lambda t: 1.0 + t.index
    )
    value = METRICS["perplexity"](rows, np.ones((1, len(rows))))[0]
    assert value == pytest.approx(math.exp(rows["reference_nll"].sum() / rows["reference_tokens"].sum()))


@pytest.mark.parametrize("name", [name for name in METRICS if not name.startswith("distinct")])
def test_a_resample_is_the_metric_of_the_table_that_repeats_its_rows(name, arms):
    rows = rows_of(arms["grpo"]).reset_index(drop=True)
    weights = cluster_weights(rows["persona_id"], resamples=5, seed=1)
    tables = [rows.loc[rows.index.repeat(row.astype(int))].reset_index(drop=True) for row in weights]
    expected = [METRICS[name](table, np.ones((1, len(table))))[0] for table in tables]
    np.testing.assert_allclose(METRICS[name](rows, weights), expected, rtol=1e-12)


def test_the_interval_of_distinct_holds_its_value(document):
    for scores in document["arms"].values():
        for name in ("distinct_1", "distinct_2"):
            low, high = scores["metrics"][name]["ci95"]
            assert low < scores["metrics"][name]["value"] < high


def test_what_needs_a_model_is_undefined_without_one(document):
    for rule in TRIVIAL_RULES:
        found = document["baselines"][rule]["metrics"]
        for name in ("perplexity", "ended"):
            reason = "undefined: needs a model, and this rule has none"
            assert found[name] == {"value": None, "ci95": None, "n": 0, "reason": reason}
        assert found["kl_start"]["reason"] == "undefined: needs replies that a model has sampled"
        assert found["reward"]["value"] is not None


def test_the_reference_is_the_ceiling(document):
    found = document["baselines"]["reference"]["metrics"]
    assert [found[name]["value"] for name in ("f1", "rouge_l", "reward_f1")] == [1.0, 1.0, 1.0]


def test_a_reward_of_the_users_has_a_metric_in_every_section(arms):
    mine = {arm: rows.assign(reward_brevity=np.arange(len(rows)) % 3) for arm, rows in arms.items()}
    found = compare_arms(PARAMS, "abc", **mine)
    assert list(found["arms"]["grpo"]["metrics"]) == [*METRICS, "reward_brevity"]
    expected = rows_of(mine["grpo"])["reward_brevity"].mean()
    assert found["arms"]["grpo"]["metrics"]["reward_brevity"]["value"] == pytest.approx(expected)
    suite = build_suite({}).for_names(found["arms"]["grpo"]["metrics"])
    assert suite.metrics["reward_brevity"].title == "Reward, brevity part"


def test_a_part_that_is_not_measured_is_undefined(arms):
    found = compare_arms(PARAMS, "abc", **{arm: rows.drop(columns="reward_bleu") for arm, rows in arms.items()})
    assert found["arms"]["grpo"]["metrics"]["reward_bleu"]["value"] is None
    assert found["differences"]["grpo"]["reward_bleu"]["value"] is None


def test_an_empty_reply_of_a_file_is_an_empty_text(arms, tmp_path):
    table = arms["grpo"].copy()
    table.loc[table["rule"] == "policy", "reply"] = ["", "NA", "null", *["red dog"] * 45]
    table.to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", keep_default_na=False, na_values=[""])
    assert rows_of(build_suite({}).prepare(read))["reply"].tolist()[:3] == ["", "NA", "null"]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda rows: rows.drop(columns="reply"), "predictions of grpo must have the columns example_id, .* none named 'reply'"),
        (lambda rows: rows[rows["example_id"] != "e003"], r"must hold the same examples .* 48 \(example 'e003' is on one"),
        (lambda rows: rows.assign(needs="story"), "needs of example 'e000' must be the same in all arms"),
        (lambda rows: rows.assign(f1=np.nan), "f1 in the predictions of grpo must be finite, got nan for example 'e000'"),
    ],
)
def test_tables_that_do_not_belong_together_are_refused(arms, broken, message):
    with pytest.raises(ValueError, match=message):
        compare_arms(PARAMS, "abc", **{**arms, "grpo": broken(arms["grpo"])})


def test_an_unknown_option_is_refused():
    with pytest.raises(ValidationError, match="calibration_bins"):
        build_suite({"calibration_bins": 10})
