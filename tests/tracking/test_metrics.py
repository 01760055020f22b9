"""Rows and comparisons become points; what is undefined stays out."""

import numpy as np
import pytest
import torch

from grpo_pipeline.tracking.metrics import Point, arm_scores, as_number, row_points, shared_scores


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


def test_scores_of_the_arms():
    assert arm_scores(COMPARISON) == {
        "supervised": {"test/auroc": 0.75, "test/auroc_ci_low": 0.5, "test/auroc_ci_high": 1.0},
        "grpo": {"test/auroc": 0.5},
    }


def test_scores_that_belong_to_no_arm():
    assert shared_scores(COMPARISON) == {
        "difference/grpo/auroc": -0.25,
        "difference/grpo/auroc_ci_low": -0.5,
        "difference/grpo/auroc_ci_high": 0.0,
        "policy_gain/grpo/reward": 1.0,
        "policy_gain/grpo/reward_ci_low": 0.5,
        "baseline/oracle/auroc_ci_low": 0.0,
        "baseline/oracle/auroc_ci_high": 1.0,
    }
