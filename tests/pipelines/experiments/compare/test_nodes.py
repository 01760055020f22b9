import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tiny_folds import EVALUATION
from tiny_grid import SHORT, tiny_parameters

from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, score_rows
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams

SUITE = build_suite("attention", {})
PARAMETERS = {"attention": tiny_parameters()}


def params(*, primary=("auroc", "reward"), keep="predictions", baselines=("uniform",), **arm):
    arms = {
        "supervised": {"base": "supervised", "set": {"training": {"epochs": 1}}},
        "grpo": {"base": "grpo", "set": SHORT} | arm,
    }
    return CompareParams(
        seeds=(3, 1), control="supervised", arms=arms, primary_metrics=primary, baseline_rules=baselines, keep=keep
    )


def test_cells_go_seed_by_seed_the_control_first():
    """Components of the reward may be compared whatever their weights."""
    changed = {"primary": ("reward_class",), "set": {"reward": {"heatmap_weight": 1.0}}}
    plan = arrange_trials(params(**changed), EVALUATION, PARAMETERS)
    assert [trial.key for trial in plan.trials] == ["supervised.seed3", "grpo.seed3", "supervised.seed1", "grpo.seed1"]
    assert all(trial.split is None and trial.fold is None for trial in plan.trials)
    assert plan.arms["grpo"].parameters["reward"]["heatmap_weight"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"primary": ("auc",)}, r"attention\.compare\.primary_metrics must be among auroc, .*, got 'auc'; correct it"),
        ({"rule": "polcy"}, r"attention\.compare\.arms\.grpo\.rule must be among policy, .*, got 'polcy'"),
        ({"baselines": ("orcale",)}, r"attention\.compare\.baseline_rules must be among policy, .*, got 'orcale'"),
        (
            {"set": {"reward": {"heatmap_weight": 1.0}}},
            "primary_metrics must not hold 'reward' .*, got it with the arm grpo",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        arrange_trials(params(**changes), EVALUATION, PARAMETERS)


def test_scores_are_those_of_one_rule_without_the_undefined(predictions):
    rows = predictions(seed=0)
    oracle = rows[rows["rule"] == "oracle"]
    found = score_rows(rows, "oracle", suite=SUITE, cluster="patient_id")
    assert found["auroc"] == pytest.approx(roc_auc_score(oracle["label"], oracle["prob"]))
    assert "prompt_sensitivity_images" not in found
    assert all(np.isfinite(value) for value in found.values())
    with pytest.raises(ValueError, match="predictions must hold the rule 'best'"):
        score_rows(rows, "best", suite=SUITE, cluster="patient_id")
