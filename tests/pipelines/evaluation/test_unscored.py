"""Samples that a user's reward left without a value are counted by arm, in the test split and in training, and said."""

import numpy as np
import pandas as pd
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.evaluation.comparison import unscored_sentences
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.statistics.metric import unscored_columns
from grpo_pipeline.tracking.summary import comparison_tables

PARAMS = evaluation_params(resamples=40)


def predictions(lost):
    """Return rows of 4 samples each, of which the reward ``kind`` leaves ``lost`` in each row without a value."""
    rows = make_predictions()
    values = np.ones((len(rows), 4))
    values[:, :lost] = np.nan
    return rows.assign(**unscored_columns({"kind": values}, np.ones(values.shape, dtype=bool)))


def metric_rows(*fractions):
    """Return the metric rows of steps with 8 samples each; NaN where all of them were scored."""
    train = {"step": range(len(fractions)), "split": "train", "reward/kind/mean": 0.5}
    lost = {"reward/kind/unscored_fraction": fractions, "reward/kind/unscored_count": [8 * one for one in fractions]}
    val = pd.DataFrame({"step": [0], "split": "val", "reward/kind/mean": 0.5})
    return pd.concat([pd.DataFrame(train | lost), val], ignore_index=True)


def test_counts_and_shares_are_those_of_the_arm_and_what_was_lost_is_said():
    """Without rewards of the users' nothing is there."""
    silent = metric_rows(np.nan)
    silent.loc[silent["split"] == "train", "reward/kind/mean"] = np.nan  # an arm that draws no samples
    training = {"grpo__training": metric_rows(np.nan, 0.5, 0.25, np.nan), "supervised__training": silent}
    document = compare_arms(PARAMS, "abc", supervised=predictions(0), grpo=predictions(1), **training)
    assert document["unscored"] == {
        "supervised": {"kind": {"test": {"count": 0.0, "share": 0.0}}},
        "grpo": {"kind": {"test": {"count": 48.0, "share": 0.25}, "training": {"count": 6.0, "share": 0.1875}}},
    }
    said = list(unscored_sentences(document["unscored"]))
    assert said == [document["summary"][-1]]
    assert said[0].startswith("grpo: the reward kind gave no value for 48 samples (25.0%) in test and 6 samples (18.8%) in train")
    assert any(said[0] in str(part) for part in comparison_tables(document)), "it is not on the terminal"
    found = compare_arms(PARAMS, "abc", supervised=make_predictions(), grpo=make_predictions(), grpo__training=metric_rows(0.5))
    assert "unscored" not in found


def test_what_was_not_asked_is_not_missing():
    columns = unscored_columns({"kind": np.array([[np.nan, 1.0], [np.nan, np.nan]])}, np.array([[False, True], [True, True]]))
    assert (columns["asked_kind"].tolist(), columns["unscored_kind"].tolist()) == ([1, 2], [0, 2])
