import pytest
from pydantic import ValidationError
from tiny_folds import EVALUATION, make_params, task_parameters

from grpo_pipeline.pipelines.experiments.cross_validation.nodes import arrange_arms
from grpo_pipeline.pipelines.experiments.cross_validation.settings import trial_arm

TWO = {"plain": {}, "slow": {"training": {"epochs": 3}}}


NESTED_ONLY, SETTINGS = "candidates must be null with scheme: ", "candidates must hold at least 2 settings "


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        ("kfold", {"candidates": TWO}, rf"{NESTED_ONLY}kfold, got \['plain', 'slow'\]; choose among them"),
        ("leave_one_center_out", {"candidates": TWO}, f"{NESTED_ONLY}leave_one_center_out"),
        ("nested", {}, rf"{SETTINGS}with scheme: nested, got \[\]"),
        ("nested", {"candidates": {"plain": {}}}, rf"{SETTINGS}.* got \['plain'\]"),
        ("nested", {"candidates": {"plain": {}, "a.b": {}}}, "must be named by small letters, digits and _, got 'a.b'"),
        ("kfold", {"control": "ppo"}, "control must be one of the arms supervised, grpo, got 'ppo'"),
        ("kfold", {"seeds": [1, 1]}, "seeds must be different numbers"),
        ("kfold", {"primary_metrics": []}, "primary_metrics"),
        ("kfold", {"fold": 3}, "fold\n"),
    ],
)
def test_what_cannot_be_combined_is_refused(scheme, changes, message):
    with pytest.raises(ValidationError, match=message):
        make_params(scheme, **changes)


def arrange(scheme, **changes):
    return arrange_arms(make_params(scheme, **changes), EVALUATION, task_parameters())


def test_a_candidate_is_merged_onto_every_arm():
    settings = arrange("nested", candidates=TWO)
    epochs = {name: arm.training.epochs for name, arm in settings.resolved.items()}
    assert epochs == {"supervised.plain": 1, "supervised.slow": 3, "grpo.plain": 1, "grpo.slow": 3}
    # What the arm itself sets stays, beside the candidate's change.
    assert settings.arms["grpo"]["slow"].algorithm.update_epochs == 1
    assert settings.arms["grpo"]["slow"].training.validation_samples == 2
    assert list(arrange("kfold").resolved) == ["supervised", "grpo"]
    assert (trial_arm("grpo", ""), trial_arm("grpo", "slow")) == ("grpo", "grpo.slow")


MISSPELT = {"wide": {"model": {"encoder_widht": 32}}}
BEST = {"supervised": {"base": "supervised", "rule": "best"}, "grpo": {"base": "grpo"}}
WEIGHED = {"candidates": {"plain": {}, "heatmap": {"reward": {"class_weight": 0.0, "heatmap_weight": 1.0}}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": TWO | MISSPELT}, r"candidates.wide.arms.supervised.set.model.encoder_widht must .* mean encoder_width\?"),
        ({"selection_metric": "auc"}, "cross_validation.selection_metric must be among auroc, .* got 'auc'"),
        (
            {"selection_metric": "prompt_sensitivity_samples"},
            "a metric with a good side, got 'prompt_sensitivity_samples'",
        ),
        ({"primary_metrics": ["f1"]}, "cross_validation.primary_metrics must be among .* got 'f1'"),
        ({"arms": BEST}, "cross_validation.arms.supervised.rule must be among policy, .* got 'best'"),
        (WEIGHED | {"primary_metrics": ["reward"]}, "primary_metrics must not be or hold 'reward' .* with supervised.heatmap"),
        (WEIGHED | {"primary_metrics": ["auroc"], "selection_metric": "reward"}, "selection_metric must not be or hold 'reward'"),
    ],
)
def test_what_is_misspelt_or_compares_different_rewards_fails_before_any_data_is_read(changes, message):
    with pytest.raises(ValueError, match=message):
        arrange("nested", **{"candidates": TWO} | changes)
    assert len(arrange("nested", **WEIGHED, primary_metrics=["reward_class"]).resolved) == 4
