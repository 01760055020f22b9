import json

import numpy as np
import pytest
from sampled_graphs import all_arms, evaluation_params, reward_params

from grpo_pipeline.pipelines.data.molecules.figures import gather_molecules, ratio_entry, window_document, window_table
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.molecules.metrics import build_suite

WINDOW = reward_params().logp


def document(window=WINDOW, arms=None):
    molecules = gather_molecules(arms or all_arms(), evaluation_params(), suite=build_suite({}))
    return window_document(molecules, name="logp", window=window, start="start")


def test_shares_and_ratios_are_those_of_the_rows():
    found, rows = document(), all_arms()["grpo"]
    hits = {rule: rows.loc[rows["rule"] == rule, "reward_logp"].to_numpy() for rule in ("policy", "start")}
    assert found["shares"]["grpo"]["value"] == hits["policy"].mean()
    assert found["ratios"]["grpo"]["value"] == pytest.approx(hits["policy"].mean() / hits["start"].mean())
    weights = cluster_weights(rows.loc[rows["rule"] == "policy", "sample_id"], resamples=50, seed=0)
    ratios = (weights @ hits["policy"]) / (weights @ hits["start"])
    assert found["ratios"]["grpo"]["ci95"] == pytest.approx(np.quantile(ratios, [0.025, 0.975], method="inverted_cdf").tolist())
    assert list(found["ratios"]) == ["supervised", "grpo", "eager"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_ends_of_the_window_are_inside():
    arms = {arm: rows.assign(logp=np.where(rows["is_valid"] == 1, 1.0, np.nan)) for arm, rows in all_arms().items()}
    valid = arms["grpo"].loc[arms["grpo"]["rule"] == "policy", "is_valid"].mean()
    assert document(arms=arms)["shares"]["grpo"]["value"] == valid


def test_a_start_that_never_hits_leaves_the_ratio_undefined_and_one_that_rarely_does_its_upper_end():
    never = ratio_entry(np.ones(4), np.zeros(4), resamples=(np.ones(8), np.zeros(8)))
    assert (never["value"], never["reason"]) == (None, "the start never hits the window")
    rarely = ratio_entry(np.ones(4), np.array([1.0, 0, 0, 0]), resamples=(np.ones(8), np.r_[np.zeros(4), np.full(4, 0.5)]))
    assert (rarely["value"], rarely["ci95"]) == (4.0, [2.0, None])
    table = window_table(
        document() | {"ratios": {"supervised": never, "grpo": rarely, "eager": rarely | {"ci95": [0.5, 0.9]}}}, title="logP"
    )
    cells = [row[2] for row in table.rows]
    assert [(cell.text, cell.note, cell.tone) for cell in cells] == [
        ("", "", ""),
        ("undefined", "the start never hits the window", ""),
        ("4.00", "[2.000, ∞]", "better"),
        ("4.00", "[0.500, 0.900]", "worse"),
    ]


def test_a_reward_without_a_window_has_no_table():
    assert window_table(document(window=None), title="logP") is None
