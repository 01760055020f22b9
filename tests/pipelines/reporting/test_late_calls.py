"""The page says above the curves how many reward calls ran out of time, and nothing where none did."""

import pandas as pd

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.pipeline import late_calls, plot_learning_curves

ROWS = {
    "grpo": pd.DataFrame({"step": [0, 1, 2], "split": "train", "reward/mean": 0.5, "reward/late_calls": [2.0, None, 5.0]}),
    "supervised": pd.DataFrame({"step": [0], "split": ["train"], "reward/mean": [0.1]}),
}


def test_calls_out_of_time_are_counted_for_each_arm():
    assert late_calls(ROWS) == "7 in grpo"  # 2 + 5
    assert late_calls({"supervised": ROWS["supervised"]}) == ""


def test_the_learning_curves_say_it():
    params = EvaluationParams.model_construct(task="attention", control="supervised", baseline_arm="grpo")

    def title(**rows):
        return plot_learning_curves(params, **rows)["00_reward_mean.svg"].axes[0].get_title(loc="left")

    assert title(**ROWS) == "Reward (calls that ran out of time: 7 in grpo)"
    assert title(supervised=ROWS["supervised"]) == "Reward"
