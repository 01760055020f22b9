"""Rows and comparisons become points; what is undefined stays out."""

import numpy as np
import pytest
import torch

from grpo_pipeline.tracking.comparison_scores import arm_scores, comparison_table, parent_scores, shown_metrics
from grpo_pipeline.tracking.metric_points import Point, as_number, chosen_metrics, row_points


def test_training_rows_keep_their_names_and_others_get_their_split():
    row = {"step": 7, "epoch": 1, "reward/mean": 0.5, "kl": None, "note": "x"}
    assert row_points({**row, "split": "train"}) == [Point("reward/mean", 0.5, 7)]
    assert row_points(row) == [Point("reward/mean", 0.5, 7)]
    assert row_points({**row, "split": "val"}) == [Point("val/reward/mean", 0.5, 7)]


def test_a_split_is_not_named_twice():
    assert row_points({"step": 1, "split": "val", "val/auroc": 0.5}) == [Point("val/auroc", 0.5, 1)]


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int64(1), torch.tensor(1.0), torch.tensor([1.0]), True])
def test_numbers(value):
    assert as_number(value) == 1.0


@pytest.mark.parametrize("value", [None, float("nan"), np.inf, -np.inf, "1.0", "x", torch.ones(2), [1.0], {}])
def test_what_is_no_number(value):
    assert as_number(value) is None


COMPARISON = {
    "task": "attention",
    "split": "test",
    "arms": {
        "supervised": {"metrics": {"auroc": {"value": 0.75, "ci95": [0.5, 1.0], "n": 4}}},
        "grpo": {"metrics": {"auroc": {"value": 0.5, "ci95": None}, "sens@80": {"value": None, "ci95": None, "reason": "one"}}},
    },
    "differences": {"grpo": {"auroc": {"value": -0.25, "ci95": [-0.5, 0.0]}}},
    "policy_gain": {"grpo": {"reward": {"value": 1.0, "ci95": [0.5, None]}}},
    "baselines": {"oracle": {"metrics": {"auroc": {"value": float("nan"), "ci95": [0.0, 1.0]}}}},
}


def test_a_row_keeps_the_metrics_that_are_shown_and_what_says_where_they_belong():
    row = {"step": 7, "epoch": 1, "split": "train", "reward/mean": 0.5, "reward/class/mean": 0.25, "lr": 1.0}
    assert chosen_metrics(row, ["reward/mean", "val/*"]) == {"step": 7, "epoch": 1, "split": "train", "reward/mean": 0.5}
    # What says only that weights were kept repeats another metric.
    val = {"step": 7, "split": "val", "auroc": 0.5, "val/dice": 0.25, "best/auroc": 0.5, "model/auroc": 0.5}
    assert chosen_metrics(val, ["val/*"]) == {"step": 7, "split": "val", "auroc": 0.5, "val/dice": 0.25}
    assert chosen_metrics(val, ["auroc"]) == {"step": 7, "split": "val"}
    assert chosen_metrics(row, ["*"]) == row


def test_the_short_table_says_which_metrics_are_shown():
    assert shown_metrics(COMPARISON) == ["auroc", "sens@80"]  # without one, all that there are
    assert shown_metrics(COMPARISON | {"headline": ["sens@80", "absent", "auroc"]}) == ["sens@80", "auroc"]
    many = {"arms": {"a": {"metrics": {f"m{n:02d}": {} for n in range(30)}}}}
    assert [len(shown_metrics(many, tasks=tasks)) for tasks in (1, 2, 3, 10)] == [9, 4, 3, 1]


def test_scores_of_the_arms():
    assert arm_scores(COMPARISON, ["auroc", "sens@80"]) == {"supervised": {"test/auroc": 0.75}, "grpo": {"test/auroc": 0.5}}
    assert arm_scores(COMPARISON | {"split": "val"}, ["auroc"])["grpo"] == {"val/auroc": 0.5}
    assert arm_scores(COMPARISON, []) == {"supervised": {}, "grpo": {}}


def test_the_parent_has_the_values_of_the_arm_that_is_spoken_of_and_the_difference():
    found = COMPARISON | {"baseline_arm": "grpo"}
    assert parent_scores(found, ["auroc", "sens@80"]) == {"test/auroc": 0.5, "difference/auroc": -0.25}
    assert parent_scores(found, ["auroc"], prefix="t.") == {"test/t.auroc": 0.5, "difference/t.auroc": -0.25}
    alone = COMPARISON | {"baseline_arm": "supervised"}
    assert parent_scores(alone, ["auroc"]) == {"test/auroc": 0.75}
    assert parent_scores({"arms": {}}, ["auroc"]) == {}


def test_every_figure_is_in_the_table():
    table = comparison_table(COMPARISON)
    assert list(table) == ["what", "of", "metric", "value", "ci_low", "ci_high", "reason"]
    rows = [[None if value != value else value for value in row] for row in table.itertuples(index=False)]
    assert rows == [
        ["arm", "supervised", "auroc", 0.75, 0.5, 1.0, None],
        ["arm", "grpo", "auroc", 0.5, None, None, None],
        ["arm", "grpo", "sens@80", None, None, None, "one"],
        ["difference to the control", "grpo", "auroc", -0.25, -0.5, 0.0, None],
        ["gain over the start", "grpo", "reward", 1.0, 0.5, None, None],
        ["other rule", "oracle", "auroc", None, 0.0, 1.0, None],
    ]
