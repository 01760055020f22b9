import pytest
from pydantic import ValidationError
from tiny_grid import tiny_parameters

from grpo_pipeline.pipelines.experiments.trials.arms import resolve_arms
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams

BASE = {"grpo": {"base": "grpo"}, "supervised": {"base": "supervised"}}
GOOD = {
    "seeds": [0, 1], "control": "supervised", "arms": BASE, "primary_metrics": ["auroc"], "baseline_rules": ["uniform"],
    "split": "val",
    "keep": "predictions",
}  # fmt: skip


def resolve(**arms):
    params = CompareParams.model_validate(GOOD | {"arms": BASE | arms})
    return resolve_arms(params, tiny_parameters(), task="attention", models=find_preparation("attention").models)


def test_an_arm_is_its_base_with_the_changes_and_the_shared_sections():
    """The control comes first, and an arm set to null is left out."""
    changes = {
        "algorithm": {"losses": {"entropy": {"weight": 0.05}}, "advantage": {"method": "leave_one_out", "clip": 2.0}},
        "reward": {"heatmap": {"weight": 0.3}},
        "training": {"epochs": 1},
    }
    arms = resolve(loo={"base": "grpo", "set": changes, "rule": "greedy"}, ppo=None)
    assert list(arms) == ["supervised", "grpo", "loo"]
    loo, grpo = arms["loo"], arms["grpo"]
    assert loo.algorithm.advantage.method == "leave_one_out"
    assert loo.algorithm.advantage.clip == 2.0
    assert grpo.algorithm.advantage.std == "sample"  # leave_one_out has no such key: another method replaces the section
    entropy = loo.algorithm.losses.entropy.weight
    assert (entropy.kind, entropy.start) == ("constant", 0.05)
    assert grpo.algorithm.losses.entropy.weight.kind == "linear"
    assert (loo.parameters["reward"]["heatmap"], grpo.parameters["reward"]["heatmap"]) == ({"weight": 0.3}, None)
    assert (loo.training.epochs, grpo.training.epochs) == (1, 2)
    assert loo.parameters["model"] == grpo.parameters["model"]
    assert loo.description.rule == "greedy"
    assert "data" not in loo.parameters
    assert loo.sections["data"].image_size == 32


def test_a_section_of_an_arm_stands_before_the_shared_one():
    parameters = tiny_parameters()
    changes = {"reward": {"heatmap": {"weight": 0.7}}, "training": {"epochs": 9}}
    own = {name: parameters[name] | change for name, change in changes.items()}
    parameters |= {"own": parameters["grpo"] | own}
    params = CompareParams.model_validate(
        GOOD | {"arms": BASE | {"own": {"base": "own", "set": {"training": {"batch_size": 2}}}}}
    )
    arms = resolve_arms(params, parameters, task="attention", models=find_preparation("attention").models)
    assert [arms[name].parameters["reward"]["heatmap"] for name in ("grpo", "own")] == [None, {"weight": 0.7}]
    assert [(arms[name].training.epochs, arms[name].training.batch_size) for name in ("grpo", "own")] == [
        (2, parameters["training"]["batch_size"]), (9, 2),
    ]  # fmt: skip


SET = r"^attention\.compare\.arms\.x\.set\."
OLDER = r"must be a .*; it is of an older version: python -m grpo_pipeline\.migrate conf/<yours> prints the new form$"


def losses(**terms):
    return {"algorithm": {"losses": terms}}


def test_what_is_wrong_is_named_with_arm_and_path():
    for base, changes, message in (
        ("grpo", losses(kl={"wieght": 0}), rf"{SET}algorithm\.losses\.kl\.wieght must be a .*; did you mean weight\?$"),
        ("grpo", losses(policy={"clip_lwo": 0.1}), rf"{SET}algorithm\.losses\.policy\.clip_lwo must be a .*mean clip_low\?$"),
        ("grpo", losses(entropy={"weight": {"kind": "linear", "strat": 1}}), rf"{SET}.*strat must .* mean start\?$"),
        ("grpo", {"modle": {}}, r"x\.set must name sections among .*got 'modle'; did you mean model\?$"),
        ("grpo", {"data": {"image_size": 64}}, r"x\.set must name sections among .*got 'data'"),
        ("grppo", {}, r"^attention\.compare\.arms\.x\.base must be one of supervised, grpo, got 'grppo'"),
        ("grpo", {"training": {"epochs": 0}}, rf"{SET}training\.epochs must be greater than or equal to 1, got 0"),
        ("grpo", {"training": {"epochs": None}}, rf"{SET}training\.epochs must be a whole number, got None"),
        ("grpo", losses(kl={"weight": "high"}), rf"{SET}.*kl\.weight must be a number, or a schedule such as {{kind"),
        ("grpo", {"algorithm": {"kl_weight": 0.1}}, rf"{SET}algorithm\.kl_weight {OLDER}"),
        ("grpo", {"model": {"policy_channels": 8}}, rf"{SET}model\.policy_channels {OLDER}"),
        ("grpo", {"model": {"encoder": "frozen"}}, rf"{SET}model\.encoder must be a section .* got 'frozen'; it is of an older"),
        ("grpo", {"model": {"class_decoder": {"kind": "statistics", "fold": 2}}}, rf"{SET}model\.class_decoder\.fold must .*"),
        ("grpo", {"model": {"class_decoder": {"kind": "glimpses"}}}, rf"{SET}model\.class_decoder\.kind must be one of glim"),
        ("grpo", losses(policy={"kind": "ppo"}), rf"{SET}algorithm: advantage\.baseline must be value with .*kind = ppo"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve(x={"base": base, "set": changes})


def test_a_baseline_is_judged_by_its_own_rows_and_begins_with_no_stage():
    parameters = tiny_parameters()
    parameters["pretraining"] = {"algorithm": parameters["supervised"]["algorithm"], "training": parameters["training"]}
    arms = BASE | {"texture": {"base": "grpo", "baseline": "texture"}}
    params = CompareParams.model_validate(GOOD | {"arms": arms})
    found = resolve_arms(params, parameters, task="attention", models=find_preparation("attention").models)
    assert {name for name, arm in found.items() if "pretraining" in arm.sections} == {"supervised", "grpo"}
    assert (found["texture"].description.rule, found["texture"].description.baseline) == ("texture", "texture")
    with pytest.raises(
        ValueError, match=r"^dialogue.compare.arms.texture.baseline must be null for a task that fits no baselines"
    ):
        resolve_arms(params, parameters, task="dialogue", models={})


def test_what_cannot_be_compared_is_refused():
    for change, message in (
        ({"control": "gropo"}, "control must be one of the arms grpo, supervised, got 'gropo'; name one of them"),
        ({"control": "grpo", "arms": BASE | {"grpo": None}}, "control must be one of the arms supervised"),
        ({"arms": {"supervised": {"base": "supervised"}}}, "arms must hold the control and at least one more"),
        ({"arms": BASE | {"../x": {"base": "grpo"}}}, r"arms must be named by small letters, digits and _, got '\.\./x'"),
        ({"seeds": [0, 0]}, r"seeds must be different numbers of at least 0, got \[0, 0\]"),
        ({"arms": BASE | {"ppo": {"base": "grpo", "sett": {}}}}, "sett"),
    ):
        with pytest.raises(ValidationError, match=message):
            CompareParams.model_validate(GOOD | change)


@pytest.mark.parametrize(
    ("seeds", "is_right"), [([0], True), ([0, 7], True), ([-1], False), ([3, -1], False), ([2, 2], False), ([], False)]
)
def test_seeds_are_told_apart_and_begin_at_0(seeds, is_right):
    if is_right:
        assert CompareParams.model_validate(GOOD | {"seeds": seeds}).seeds == tuple(seeds)
    else:
        with pytest.raises(ValidationError, match="seeds"):
            CompareParams.model_validate(GOOD | {"seeds": seeds})
