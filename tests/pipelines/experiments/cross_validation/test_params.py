import pytest
from pydantic import ValidationError
from tiny_folds import EVALUATION, make_params, task_parameters

from grpo_pipeline.pipelines.experiments.cross_validation.nodes import arrange_arms
from grpo_pipeline.pipelines.experiments.cross_validation.settings import trial_arm

TWO = {"plain": {}, "slow": {"training": {"epochs": 3}}}


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        (
            "kfold",
            {"candidates": TWO},
            "candidates must be null with scheme: kfold, got \\['plain', 'slow'\\]; choose among them",
        ),
        ("leave_one_center_out", {"candidates": TWO}, "candidates must be null with scheme: leave_one_center_out"),
        ("nested", {}, "candidates must hold at least 2 settings with scheme: nested, got \\[\\]"),
        ("nested", {"candidates": {"plain": {}}}, "candidates must hold at least 2 settings .* got \\['plain'\\]"),
        (
            "nested",
            {"candidates": {"plain": {}, "a.b": {}}},
            "candidates must be named by small letters, digits and _, got 'a.b'",
        ),
        ("kfold", {"control": "ppo"}, "control must be one of the arms supervised, grpo, got 'ppo'"),
        ("kfold", {"seeds": [1, 1]}, "seeds must be different numbers"),
        ("kfold", {"primary_metrics": []}, "primary_metrics"),
        ("kfold", {"fold": 3}, "fold\n"),
    ],
)
def test_what_cannot_be_combined_is_refused(scheme, changes, message):
    with pytest.raises(ValidationError, match=message):
        make_params(scheme, **changes)


def test_a_candidate_is_merged_onto_every_arm():
    settings = arrange_arms(make_params("nested", candidates=TWO), EVALUATION, task_parameters())
    assert list(settings.resolved) == ["supervised.plain", "supervised.slow", "grpo.plain", "grpo.slow"]
    epochs = {name: arm.training.epochs for name, arm in settings.resolved.items()}
    assert epochs == {"supervised.plain": 1, "supervised.slow": 3, "grpo.plain": 1, "grpo.slow": 3}
    # What the arm itself sets stays, beside the candidate's change.
    assert settings.arms["grpo"]["slow"].algorithm.update_epochs == 1
    assert settings.arms["grpo"]["slow"].training.validation_samples == 2


def test_without_candidates_an_arm_keeps_its_name():
    settings = arrange_arms(make_params("kfold"), EVALUATION, task_parameters())
    assert list(settings.resolved) == ["supervised", "grpo"]
    assert (trial_arm("grpo", ""), trial_arm("grpo", "slow")) == ("grpo", "grpo.slow")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"candidates": TWO | {"wide": {"model": {"encoder_widht": 32}}}},
            r"cross_validation.candidates.wide.arms.supervised.set.model.encoder_widht must be a .* mean encoder_width\?",
        ),
        ({"candidates": TWO, "selection_metric": "auc"}, "cross_validation.selection_metric must be among auroc, .* got 'auc'"),
        (
            {"candidates": TWO, "selection_metric": "prompt_sensitivity_samples"},
            "selection_metric must be a metric with a good side, got 'prompt_sensitivity_samples'",
        ),
        ({"candidates": TWO, "primary_metrics": ["f1"]}, "cross_validation.primary_metrics must be among .* got 'f1'"),
        (
            {"candidates": TWO, "arms": {"supervised": {"base": "supervised", "rule": "best"}, "grpo": {"base": "grpo"}}},
            "cross_validation.arms.supervised.rule must be among policy, .* got 'best'",
        ),
    ],
)
def test_what_is_misspelt_fails_before_any_data_is_read(changes, message):
    with pytest.raises(ValueError, match=message):
        arrange_arms(make_params("nested", **changes), EVALUATION, task_parameters())


WEIGHED = {"plain": {}, "heatmap": {"reward": {"class_weight": 0.0, "heatmap_weight": 1.0}}}


@pytest.mark.parametrize(
    ("primary", "deciding", "field"), [("reward", "auroc", "primary_metrics"), ("auroc", "reward", "selection_metric")]
)
def test_rewards_of_different_make_are_not_compared(primary, deciding, field):
    params = make_params("nested", candidates=WEIGHED, primary_metrics=[primary], selection_metric=deciding)
    with pytest.raises(
        ValueError, match=rf"cross_validation.{field} must not be or hold 'reward' .* got it with supervised.heatmap"
    ):
        arrange_arms(params, EVALUATION, task_parameters())
    fine = make_params("nested", candidates=WEIGHED, primary_metrics=["reward_class"], selection_metric="auroc")
    assert len(arrange_arms(fine, EVALUATION, task_parameters()).resolved) == 4
