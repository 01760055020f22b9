import json
import math

import numpy as np
import pandas as pd
import pytest
import sacrebleu
from pydantic import ValidationError
from tiny_replies import PARTS, evaluation_params, make_examples, make_predictions

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.dialogue.evaluation.metrics import METRICS, RULES, build_suite
from grpo_pipeline.tasks.dialogue.evaluation.summary import summary
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import TRIVIAL_RULES, most_frequent_words, trivial_replies
from grpo_pipeline.tasks.dialogue.evaluation.warning_signs import READ_BY_PEOPLE, WarningBounds, trivial_warning
from grpo_pipeline.tasks.dialogue.evaluation.weighted_bleu import weighted_corpus_bleu
from grpo_pipeline.tasks.dialogue.evaluation.weighted_distinct import weighted_distinct
from grpo_pipeline.tasks.dialogue.scores import diversity
from grpo_pipeline.tasks.dialogue.scores.bleu import bleu_counts, corpus_bleu

PARAMS = evaluation_params(resamples=40)


@pytest.fixture(scope="module")
def arms():
    return {"supervised": make_predictions(skill=0.4, seed=1), "grpo": make_predictions(skill=0.9, seed=2)}


def rows_of(table, rule="policy"):
    return table[table["rule"] == rule].sort_values("example_id")


def test_values_are_those_of_the_rows_and_undefined_where_a_model_is_missing(arms):
    document = compare_arms(PARAMS, "abc", **arms)
    json.dumps(document, allow_nan=False)
    assert document["n"].items() >= {"examples": 48, "clusters": 12, "cluster": "subject_id"}.items()
    assert list(document["baselines"]) == [rule for rule in RULES if rule != "policy"]
    for section in (*document["arms"].values(), *document["baselines"].values()):
        assert list(section["metrics"]) == list(METRICS)
    assert document["differences"]["grpo"]["reward"]["ci95"][0] > 0
    assert document["policy_gain"]["grpo"]["f1"]["ci95"][0] > 0
    # The bar: above the start, the control and what is written without a model; the true reply, above all, is no competitor.
    bar = document["bar"]["grpo"]["f1"]
    assert (bar["verdict"], {kind: one["than"] for kind, one in bar["conditions"].items()}) == (
        "met", {"start": "start", "control": "supervised", "fixed": "top_words"},
    )  # fmt: skip
    assert document["own_minus_baseline"]["reference"]["f1"]["ci95"][1] < 0
    said = " ".join(document["summary"])
    assert "grpo: did learning from reward work, by F1? Yes. Each must lie above 0: own − start +" in said
    rows, found = rows_of(arms["grpo"]), document["arms"]["grpo"]["metrics"]
    scores = ("f1", "rouge_1", "rouge_2", "rouge_l", "rouge_l_rouge101", "length")
    for name in (*scores, "reward", *(f"reward_{part}" for part in PARTS)):
        assert found[name]["value"] == pytest.approx(rows[name].mean(), rel=1e-12)
    answers = list(make_examples()["answers"])
    assert found["bleu"]["value"] == pytest.approx(corpus_bleu(bleu_counts(list(rows["reply"]), answers)))
    streams = [[one[place] if place < len(one) else None for one in answers] for place in range(max(map(len, answers)))]
    want = sacrebleu.BLEU().corpus_score(list(rows["reply"]), streams).score / 100
    assert found["bleu_13a"]["value"] == pytest.approx(want, rel=1e-12)
    assert found["bleu_13a"]["ci95"][0] < want < found["bleu_13a"]["ci95"][1]
    for n in (1, 2):
        assert found[f"distinct_{n}"]["value"] == diversity.distinct(list(rows["reply"]), n=n)
    # Of all tokens, and no mean of perplexities.
    rows = rows.assign(reference_nll=np.arange(len(rows)), reference_tokens=1.0 + rows.index)
    value = METRICS["perplexity"](rows, np.ones((1, len(rows))))[0]
    assert value == pytest.approx(math.exp(rows["reference_nll"].sum() / rows["reference_tokens"].sum()))
    for rule in TRIVIAL_RULES:
        found = document["baselines"][rule]["metrics"]
        for name in ("perplexity", "ended"):
            reason = "undefined: needs a model, and this rule has none"
            assert found[name] == {"value": None, "ci95": None, "n": 0, "reason": reason}
        assert found["kl_start"]["reason"] == "undefined: needs replies that a model has sampled"
        assert found["reward"]["value"] is not None
    assert [found[name]["value"] for name in ("f1", "rouge_l", "reward_f1")] == [1.0, 1.0, 1.0]  # of the references


@pytest.mark.parametrize("name", [name for name in METRICS if not name.startswith("distinct")])
def test_a_resample_is_the_metric_of_the_table_that_repeats_its_rows(name, arms):
    rows = rows_of(arms["grpo"]).reset_index(drop=True)
    weights = cluster_weights(rows["subject_id"], resamples=5, seed=1)
    tables = [rows.loc[rows.index.repeat(row.astype(int))].reset_index(drop=True) for row in weights]
    expected = [METRICS[name](table, np.ones((1, len(table))))[0] for table in tables]
    np.testing.assert_allclose(METRICS[name](rows, weights), expected, rtol=1e-12)


@pytest.mark.parametrize("longest", [3, 5, 9, 20])
def test_a_resample_has_the_bleu_of_the_table_that_repeats_its_rows(longest):
    """Short replies too, where orders of n-grams are missing or match nothing and are smoothed."""
    generator = np.random.default_rng(longest)
    texts = [" ".join(generator.choice([*"abcdef"], size=generator.integers(0, longest))) for _ in range(42)]
    counts = bleu_counts(texts[:14], [*map(list, zip(texts[14:28], texts[28:], strict=True))])
    weights = generator.multinomial(14, np.full(14, 1 / 14), size=60).astype(float)
    expected = [corpus_bleu(np.repeat(counts, w.astype(int), axis=0)) for w in weights]
    np.testing.assert_allclose(weighted_corpus_bleu(counts, weights), expected, rtol=1e-12, atol=1e-15)
    assert np.isnan(weighted_corpus_bleu(counts, 0 * weights[:1])[0])


def test_rewards_are_the_parts_that_the_rows_have(arms):
    mine = {arm: rows.assign(reward_brevity=np.arange(len(rows)) % 3) for arm, rows in arms.items()}
    metrics = compare_arms(PARAMS, "abc", **mine)["arms"]["grpo"]["metrics"]
    assert list(metrics) == [*METRICS, "reward_brevity"]
    assert metrics["reward_brevity"]["value"] == pytest.approx(rows_of(mine["grpo"])["reward_brevity"].mean())
    assert build_suite({}).for_names(metrics).metrics["reward_brevity"].title == "Reward, brevity component"
    without = compare_arms(PARAMS, "abc", **{arm: rows.drop(columns="reward_bleu") for arm, rows in arms.items()})
    for found in (without["arms"]["grpo"]["metrics"], without["differences"]["grpo"]):
        assert found["reward_bleu"]["value"] is None
    old = [name for name in arms["grpo"] if name.startswith("bleu_13a_") or name == "rouge_l_rouge101"]
    before = compare_arms(PARAMS, "abc", **{arm: rows.drop(columns=old) for arm, rows in arms.items()})["arms"]["grpo"]["metrics"]
    for name in ("bleu_13a", "rouge_l_rouge101"):
        assert before[name]["reason"] == "undefined: needs predictions that were scored by this definition; evaluate again"
    with pytest.raises(ValidationError, match="calibration_bins"):
        build_suite({"calibration_bins": 10})
    with pytest.raises(ValueError, match="needs of example 'e000' must be the same in all arms"):
        compare_arms(PARAMS, "abc", **arms | {"grpo": arms["grpo"].assign(needs="story")})


def test_an_empty_reply_of_a_file_is_an_empty_text(arms, tmp_path):
    table = arms["grpo"].copy()
    table.loc[table["rule"] == "policy", "reply"] = ["", "NA", "null", *["red dog"] * 45]
    table.to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", keep_default_na=False, na_values=[""])
    assert rows_of(build_suite({}).prepare(read))["reply"].tolist()[:3] == ["", "NA", "null"]


@pytest.mark.parametrize("n", [1, 2])
def test_each_cluster_moves_it_as_leaving_it_out_does(n):
    """The jackknife by a naive loop: D - (C - 1) / C * sum_c (w_c - 1) * D without c."""
    generator, of_row = np.random.default_rng(3), np.repeat(np.arange(6), 3)
    replies = [" ".join(generator.choice([*"abcdefghijkl"], size=generator.integers(3, 8))) for _ in of_row]
    of_cluster = generator.multinomial(6, np.full(6, 1 / 6), size=8).astype(float)
    whole = diversity.distinct(replies, n=n)
    without = [diversity.distinct([r for r, c in zip(replies, of_row, strict=True) if c != k], n=n) for k in range(6)]
    expected = np.clip([whole - 5 / 6 * sum((row - 1) * without) for row in of_cluster], 0, 1)
    np.testing.assert_allclose(weighted_distinct(replies, of_row, of_cluster[:, of_row], n=n), expected, rtol=1e-12)


def test_a_perplexity_rests_on_the_tokens_of_its_references(arms):
    rows = rows_of(arms["grpo"])
    weights = np.random.default_rng(0).integers(0, 3, (4, len(rows))).astype(float)
    np.testing.assert_allclose(METRICS["perplexity"].mass(rows, weights), weights @ rows["reference_tokens"].to_numpy())


def test_distinct_without_enough_n_grams():
    two = np.array([0, 1])
    assert np.isnan(weighted_distinct(["the", ""], two, np.ones((3, 2)), n=1)).all()
    assert np.isnan(weighted_distinct(["one", "two"], two, np.ones((3, 2)), n=2)).all()
    found = weighted_distinct(["one two", "one"], two, np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]]), n=2)
    np.testing.assert_array_equal(found, [1.0, np.nan, np.nan])
    with pytest.raises(ValueError, match="the weights of one persona's rows must be equal, got different ones"):
        weighted_distinct(["one", "two"], np.array([0, 0]), np.array([[1.0, 2.0]]), n=1)


BOUNDS = WarningBounds()
SOUND = {"reward": 1.2, "distinct_2": 0.5, "perplexity": 4.0, "length": 6.0}


def entry(value, *, spread=0.05):
    return {"value": value, "ci95": [value - spread, value + spread]}


def verdict_scores(**values):
    return {"metrics": {name: {"value": value, "ci95": None, "n": 9, "reason": "x"} for name, value in values.items()}}


def verdict_document(*, grpo=None, start=None, trivial=0.3, reward=0.2, **moved):
    """A comparison in which grpo earns 0.2 more reward; ``moved`` are differences of scores to the control, 0 if not named."""
    differences = {"reward": entry(reward)} | {name: entry(moved.get(name, 0.0)) for name in READ_BY_PEOPLE if name != "accuracy"}
    baselines = {rule: verdict_scores(reward=trivial) for rule in TRIVIAL_RULES[:-1]} | {"reference": verdict_scores(reward=3.0)}
    if start is not False:
        baselines["start"] = verdict_scores(**SOUND | {"reward": 1.0} | (start or {}))
    return {
        "control": "supervised",
        "arms": {"supervised": verdict_scores(**SOUND | {"reward": 1.0}), "grpo": verdict_scores(**SOUND | (grpo or {}))},
        "differences": {"grpo": differences},
        "policy_gain": {"grpo": {"reward": entry(0.25)}, "supervised": {"reward": entry(0.0)}},
        "baselines": baselines,
    }


def warned(*, bounds=BOUNDS, **changes):
    said = summary(verdict_document(**changes), bounds=bounds)
    return [line.replace("WARNING: ", "") for line in said if "WARNING" in line]


def without_interval(found):
    found["differences"]["grpo"]["reward"] = {"value": 0.2, "ci95": None, "reason": "no interval: one cluster"}
    return found


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({}, "grpo: its replies earn +0.200 (95% interval +0.150 to +0.250) reward against supervised: more than supervised."),
        ({}, "grpo: its replies earn +0.250 (95% interval +0.200 to +0.300) reward against the start: more than the start."),
        ({}, "supervised: its replies earn +0.000 (95% interval -0.050 to +0.050) reward against the start: no difference"),
        ({}, "supervised: no bound of a warning is passed: distinct-2 fell by at most 20%"),
        ({"reward": -0.2}, "less than supervised."),
        ({"f1": 0.1, "bleu": 0.1, "rouge_1": -0.1}, "supervised: F1, BLEU higher; ROUGE-1 lower; ROUGE-2, ROUGE-L not shown to"),
        (without_interval, "grpo: reward against supervised: no statement (no interval: one cluster)."),
    ],
)
def test_reward_and_scores_are_compared_with_the_control_and_the_start(found, line):
    found = verdict_document(**found) if isinstance(found, dict) else found(verdict_document())
    assert line in "\n".join(summary(found, bounds=BOUNDS))


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({"grpo": {"distinct_2": 0.39}}, ["grpo: distinct-2 is 22% below that of the start (0.390 against 0.500; the bound"]),
        ({"grpo": {"distinct_2": 0.39}, "start": False}, ["grpo: distinct-2 is 22% below that of supervised"]),
        ({"grpo": {"distinct_2": 0.45}, "bounds": WarningBounds(distinct_fall=0.05)}, ["grpo: distinct-2 is 10% below that of"]),
        ({"grpo": {"perplexity": 8.1}}, ["grpo: the perplexity of the references is 2.0 times that of the start (8.10"]),
        ({"grpo": {"length": 3.9}}, ["grpo: replies have shrunk to 0.65 times the length of the start (3.9 against 6.0 words"]),
        ({"grpo": {"length": 9.1}}, ["grpo: replies have grown to 1.52 times the length of the start (9.1 against 6.0 words"]),
        ({"f1": -0.1}, ["grpo: the reward rises and F1 falls: the reward does not measure what is reported"]),
        *(({"grpo": inside}, []) for inside in (
            {}, {"distinct_2": 0.41}, {"perplexity": 7.9}, {"length": 4.1}, {"length": 8.9}, {"distinct_2": 0.9},
            {"perplexity": 8.0}, {"length": 9.0}, {"length": 4.0})),  # at the bounds
        ({"grpo": {"distinct_2": 0.375}, "bounds": WarningBounds(distinct_fall=0.25)}, []),
        ({"trivial": 0.99}, []),
        ({"trivial": 1.0}, ["supervised: the trivial rule constant earns 1.000 reward without a model, the arm 1.000"]),
        ({"trivial": 1.3}, ["supervised: the trivial rule", "grpo: the trivial rule"]),
    ],
)  # fmt: skip
def test_each_sign_is_one_warning_and_inside_the_bounds_there_is_none(changes, warnings):
    found = warned(**changes)
    assert [line[: len(start)] for line, start in zip(found, warnings, strict=True)] == warnings


def test_of_trivial_rules_the_one_that_earns_most_is_named():
    earned = {"constant": 0.5, "top_words": 1.4, "copy_last_turn": 1.3, "reference": 9.0}
    baselines = {rule: {"metrics": {"reward": {"value": value}}} for rule, value in earned.items()}
    (said,) = trivial_warning("grpo", {"reward": 1.35}, {"baselines": baselines})
    assert said.startswith("grpo: WARNING: the trivial rule top_words earns 1.400 reward without a model, the arm 1.350")
    assert trivial_warning("grpo", {"reward": 1.41}, {"baselines": baselines}) == []


def test_replies_that_became_alike_without_reward_have_bought_nothing():
    found = verdict_document(grpo={"distinct_2": 0.2}, reward=0.0)
    found["policy_gain"]["grpo"]["reward"] = entry(0.0)
    (line,) = [line for line in summary(found, bounds=BOUNDS) if "WARNING" in line]
    assert line.endswith("the replies have become alike.")


def test_every_rule_answers_every_example():
    # dog 3, cat 2, zebra 2, i 1; "the" is no word; ties go by alphabet
    replies = ["The dog, the dog!", "the zebra the cat", "I: cat? Dog... zebra"]
    assert most_frequent_words(replies, count=3) == "dog cat zebra"
    assert most_frequent_words(replies) == "dog cat zebra i"
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        most_frequent_words(["hi"], count=0)
    answers, contexts = [["Fine.", "Well!"], ["I have a dog"]], ["how are you?\nand your cat? \n", " "]
    personas = [["i am tall.", "i sing."], "i like dogs."]
    got = trivial_replies(["hello you", "you"], contexts, personas=personas, answers=answers)
    assert got == {
        "constant": ["i am good how are you"] * 2,
        "top_words": ["you hello"] * 2,
        "copy_last_turn": ["and your cat?", ""],
        "copy_persona": ["i am tall. i sing.", "i like dogs."],
        "reference": ["Fine.", "I have a dog"],
    }
