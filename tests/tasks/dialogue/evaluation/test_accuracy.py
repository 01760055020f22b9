"""Right replies are counted as an enumeration of all choices of k samples counts them, and judge where a reward is verifiable."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.statistics.answer_reading import read_answer
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.dialogue.evaluation.accuracy import accuracy_columns, majority_at, pass_at
from grpo_pipeline.tasks.dialogue.evaluation.metrics import METRICS, build_suite
from grpo_pipeline.tasks.dialogue.pipelines.scores_by_need import scores_by_need
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward

VOTES = st.lists(st.sampled_from([("4", True), ("four", True), ("5", False), ("6", False), ("7", False)]), min_size=1, max_size=7)


@given(VOTES, st.integers(1, 7))
def test_k_samples_know_what_an_enumeration_of_all_choices_says(votes: list[tuple[str, bool]], k: int) -> None:
    right = sum(hit for _, hit in votes)
    found = pass_at(len(votes), right, k), majority_at(Counter(votes), k)
    if k > len(votes):
        assert all(math.isnan(one) for one in found)
        return
    passed, won, choices = 0.0, 0.0, list(combinations(votes, k))
    for choice in choices:
        passed += any(hit for _, hit in choice)
        most = max(Counter(choice).values())
        tied = [vote for vote, count in Counter(choice).items() if count == most]
        won += sum(hit for _, hit in tied) / len(tied)
    assert found == pytest.approx((passed / len(choices), won / len(choices)), abs=1e-12)


def test_one_sample_and_a_majority_of_two_are_the_accuracy() -> None:
    votes = Counter({("4", True): 2, ("5", False): 1, ("6", False): 3})
    assert [pass_at(6, 2, 1), majority_at(votes, 1), majority_at(votes, 2)] == pytest.approx([1 / 3] * 3, abs=1e-12)


def reward(**terms: dict[str, object]) -> DialogueReward:
    return DialogueReward.model_validate({name: {"weight": 0.5, **more} for name, more in terms.items()})


@pytest.mark.parametrize(
    ("terms", "verifiable"),
    [
        ({"f1": {}}, ()),
        ({"f1": {}, "exact_match": {}}, ("exact_match",)),
        ({"number": {}, "exact_match": {}, "pattern": {"regex": "a"}}, ("number", "exact_match")),
        ({"pattern": {"regex": "a"}, "length": {"free": 1, "limit": 2}}, ("pattern",)),
        ({"pattern": {"regex": "a"}, "bleu": {}}, ()),  # the form of replies that are compared with texts
    ],
)
def test_a_reward_is_verifiable_by_its_terms(terms: dict[str, dict[str, object]], verifiable: tuple[str, ...]) -> None:
    assert reward(**terms).verifiable == verifiable


def test_columns_are_of_the_replies_that_could_be_judged() -> None:
    rewards = reward(number={}, length={"free": 3, "limit": 4})
    replies = [("4", "it is 4", "5", "6"), ("4", "4", "x", "y"), ("1",) * 4]
    values = torch.tensor([[1.0, 1, 0, 0], [1, torch.nan, torch.nan, 0], [torch.nan] * 4], dtype=torch.float64)
    columns = accuracy_columns(rewards, replies, {"number": values}, n_samples=4)
    expected = {
        "accuracy": [0.5, 0.5, np.nan],
        "pass_at_2": [1 - 1 / 6, 1.0, np.nan],
        "pass_at_4": [1.0, np.nan, np.nan],
        "majority_at_4": [1.0, np.nan, np.nan],  # two of four against one and one
    }
    assert list(columns) == list(expected)
    for name, column in expected.items():
        np.testing.assert_allclose(columns[name], column, rtol=1e-12)
    single = accuracy_columns(rewards, [("4",)], {"number": values[:1, :1]}, n_samples=4)
    assert (list(single), single["accuracy"].tolist()) == (list(expected), [1.0])
    assert all(math.isnan(single[name][0]) for name in expected if name != "accuracy")
    assert accuracy_columns(reward(f1={}), replies, {}, n_samples=4) == {}
    both = reward(number={}, exact_match={})
    parts = {"number": torch.ones(1, 2), "exact_match": torch.tensor([[1.0, 0.0]])}
    assert accuracy_columns(both, [("4", "it is 4")], parts, n_samples=1)["accuracy"].tolist() == [0.5]


def predictions(share: float, seed: int) -> pd.DataFrame:
    """Draw rows whose policy is right so often, and whose start in a third of the cases."""
    table, world = make_predictions(skill=0.5, seed=seed), np.random.default_rng(seed)
    chance = table["rule"].map({"policy": share, "start": 0.3}).fillna(0.1)
    own = world.random(len(table)) < chance
    return table.assign(accuracy=own.astype(float), pass_at_2=1.0, pass_at_4=1.0, majority_at_4=0.5)


@pytest.fixture(scope="module")
def arms() -> dict[str, pd.DataFrame]:
    return {"supervised": predictions(0.4, 1), "grpo": predictions(0.95, 2)}


def test_where_replies_are_right_or_wrong_accuracy_comes_first_and_judges(arms: dict[str, pd.DataFrame]) -> None:
    document = compare_arms(evaluation_params(resamples=200), "abc", **arms)
    names = ["accuracy", "pass_at_2", "pass_at_4", "majority_at_4"]
    assert list(document["arms"]["grpo"]["metrics"]) == [*names, *METRICS]
    assert document["headline"] == ["accuracy", "pass_at_4", "majority_at_4", "reward"]
    assert list(document["bar"]["grpo"]) == ["accuracy"]
    answer = read_answer(document, build_suite({}))
    assert (answer.primary.title, answer.verdict) == ("Accuracy", "better")
    assert [row.title for row in answer.rows] == ["Accuracy", "pass@4", "maj@4", "Reward"]
    assert "did learning from reward work, by Accuracy? Yes" in " ".join(document["summary"])


def test_its_intervals_are_paired_and_of_whole_clusters_as_those_of_f1(arms: dict[str, pd.DataFrame]) -> None:
    document = compare_arms(evaluation_params(resamples=200), "abc", **arms)
    own, other = (arms[name][arms[name]["rule"] == "policy"].sort_values("example_id") for name in ("grpo", "supervised"))
    gaps = own["accuracy"].to_numpy() - other["accuracy"].to_numpy()
    weights = cluster_weights(own["subject_id"], resamples=200, seed=0)
    low, high = np.quantile(weights @ gaps / weights.sum(axis=1), [0.025, 0.975])
    assert document["differences"]["grpo"]["accuracy"]["ci95"] == pytest.approx([low, high], abs=1e-12)


def test_the_bars_by_need_are_those_of_the_judging_metric(arms: dict[str, pd.DataFrame]) -> None:
    suite, plain = build_suite({}), {arm: rows.drop(columns="accuracy") for arm, rows in arms.items()}
    assert list(scores_by_need(arms, evaluation_params(), suite=suite)) == ["0_reward.svg", "1_accuracy.svg"]
    assert list(scores_by_need(plain, evaluation_params(), suite=suite)) == ["0_reward.svg", "1_f1.svg"]
