import numpy as np
import pytest
from pydantic import ValidationError
from tiny_folds import EVALUATION, make_fold_examples, make_params, plan_cores, task_parameters

from grpo_pipeline.pipelines.experiments.cross_validation.candidates import trial_arm
from grpo_pipeline.pipelines.experiments.cross_validation.choice import choose
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import inner_plan
from grpo_pipeline.pipelines.experiments.cross_validation.nodes import arrange_arms
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, TrialHeader

CANDIDATES = {"a": {}, "b": {"training": {"epochs": 2}}, "c": {"training": {"epochs": 3}}}
PARAMS = make_params("nested", candidates=CANDIDATES, seeds=[0, 1])


SETTINGS = arrange_arms(PARAMS, EVALUATION, task_parameters())
PLAN = plan_cores(make_fold_examples().table, {}, PARAMS)


def headers(values=None, *, failed=()):
    """Headers of all inner trials with random values, those of ``values`` replaced; None leaves the metric out."""
    rng = np.random.default_rng(0)
    found = {}
    for trial in inner_plan(SETTINGS, PLAN, PARAMS.seeds).trials:
        value = {**{trial.key: float(rng.random())}, **(values or {})}[trial.key]
        metrics = {} if value is None else {"auroc": value}
        status = "failed" if trial.key in failed else "finished"
        found[trial.key] = TrialHeader(trial.key, "attention", trial.arm, trial.seed, trial.fold, status, 1.0, "d", {}, metrics)
    return found


def choose_all(found, *, better="higher"):
    return choose(SETTINGS, PLAN, found, seeds=PARAMS.seeds, metric="auroc", better=better)


def naive(found, arm, number, candidate, *, without=()):
    keys = [f"{arm}.{candidate}.seed{seed}.fold{number}.inner{inner}" for seed in (0, 1) for inner in (0, 1)]
    return np.mean([found[key].metrics["auroc"] for key in keys if not any(key.endswith(end) for end in without)])


def first_of(found):
    return next(one for one in choose_all(found) if (one.arm, one.fold) == ("grpo", "fold0"))


@pytest.mark.parametrize(("better", "best"), [("higher", max), ("lower", min)])
def test_the_best_mean_over_seeds_and_inner_folds_is_chosen(better, best):
    found = headers()
    for choice in choose_all(found, better=better):
        means = {name: naive(found, choice.arm, choice.fold.removeprefix("fold"), name) for name in CANDIDATES}
        assert dict(choice.means) == pytest.approx(means)
        assert (choice.chosen, choice.n) == (best(means, key=means.get), 4)


def test_a_pair_undefined_for_one_counts_for_none_and_a_failed_candidate_cannot_win():
    found = headers({"grpo.b.seed1.fold0.inner1": None})
    choice = first_of(found)
    expected = {name: naive(found, "grpo", 0, name, without=["seed1.fold0.inner1"]) for name in CANDIDATES}
    assert (dict(choice.means), choice.n) == (pytest.approx(expected), 3)
    best = {f"grpo.c.seed{seed}.fold0.inner{inner}": 1.0 for seed in (0, 1) for inner in (0, 1)}
    assert first_of(headers(best)).chosen == "c"
    choice = first_of(headers(best, failed=["grpo.c.seed0.fold0.inner0"]))
    assert choice.chosen != "c"
    assert choice.means["c"] is None


def test_of_equal_candidates_the_first_is_chosen_and_without_any_the_cells_are_named():
    keys = [trial.key for trial in inner_plan(SETTINGS, PLAN, PARAMS.seeds).trials]
    choices = choose_all(headers(dict.fromkeys(keys, 0.5)))
    assert {choice.chosen for choice in choices} == {"a"}
    none = "candidates of supervised inside 'fold0' must hold one whose inner trials have all finished"
    undefined = "must have an inner fold in which auroc is defined for all of them"
    for lost, message in (({"failed": keys}, none), ({"values": dict.fromkeys(keys)}, undefined)):
        with pytest.raises(CompareError, match=message):
            choose_all(headers(**lost))


TWO = {"plain": {}, "slow": {"training": {"epochs": 3}}}
NESTED_ONLY, AT_LEAST = "candidates must be null with scheme: ", "candidates must hold at least 2 settings "


def test_what_cannot_be_combined_is_refused():
    for scheme, changes, message in (
        ("kfold", {"candidates": TWO}, rf"{NESTED_ONLY}kfold, got \['plain', 'slow'\]; choose among them"),
        ("leave_one_center_out", {"candidates": TWO}, f"{NESTED_ONLY}leave_one_center_out"),
        ("nested", {}, rf"{AT_LEAST}with scheme: nested, got \[\]"),
        ("nested", {"candidates": {"plain": {}}}, rf"{AT_LEAST}.* got \['plain'\]"),
        ("nested", {"candidates": {"plain": {}, "a.b": {}}}, "must be named by small letters, digits and _, got 'a.b'"),
        ("kfold", {"fold": 3}, "fold\n"),
    ):
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


MISSPELT = {"wide": {"model": {"encoder": {"widht": 32}}}}
BEST = {"supervised": {"base": "supervised", "rule": "best"}, "grpo": {"base": "grpo"}}
WEIGHED = {"candidates": {"plain": {}, "heatmap": {"reward": {"class": None, "heatmap": {"weight": 1.0}}}}}


def test_misspelt_parameters_and_unlike_rewards_fail_before_any_data_is_read():
    for changes, message in (
        ({"candidates": TWO | MISSPELT}, r"candidates.wide.arms.supervised.set.model.encoder.widht must .* mean width\?"),
        ({"selection_metric": "auc"}, "cross_validation.selection_metric must be among auroc, .* got 'auc'"),
        ({"selection_metric": "prompt_sensitivity_samples"}, "a metric with a good side, got 'prompt_sensitivity_samples'"),
        ({"primary_metrics": ["f1"]}, "cross_validation.primary_metrics must be among .* got 'f1'"),
        ({"arms": BEST}, "cross_validation.arms.supervised.rule must be among policy, .* got 'best'"),
        (WEIGHED | {"primary_metrics": ["reward"]}, "primary_metrics must not be or hold 'reward' .* with supervised.heatmap"),
        (WEIGHED | {"primary_metrics": ["auroc"], "selection_metric": "reward"}, "selection_metric must not be or hold 'reward'"),
    ):
        with pytest.raises(ValueError, match=message):
            arrange("nested", **{"candidates": TWO} | changes)
        assert len(arrange("nested", **WEIGHED, primary_metrics=["reward_class"]).resolved) == 4
