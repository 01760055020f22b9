from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_grid import tiny_parameters

from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams, merge, resolve_arms
from grpo_pipeline.pipelines.experiments.trials.setups import find_setup

LEAVES = st.none() | st.integers(0, 3)
TWIGS = st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3)
TREES = st.dictionaries(st.sampled_from("abc"), LEAVES | TWIGS, max_size=3)


def resolve(**arms):
    base = {"supervised": {"base": "supervised"}, "grpo": {"base": "grpo"}}
    params = CompareParams(
        seeds=(0,), control="supervised", arms=base | arms, primary_metrics=("auroc",), baseline_rules=(), keep="predictions"
    )
    return resolve_arms(params, tiny_parameters(), task="attention", models=find_setup("attention").models)


def test_mappings_are_merged_and_everything_else_is_replaced():
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": {"kind": "linear"}, "d": {"e": 1}}
    change = {"a": {"y": {"w": 3}}, "b": [3], "c": 0.5, "d": None, "f": {"g": 1}}
    before = deepcopy(base)
    assert merge(base, change) == {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "b": [3], "c": 0.5, "d": None, "f": {"g": 1}}
    assert base == before


def paths(tree, prefix=()):
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {(*prefix,): {}} | {path: leaf for name, part in tree.items() for path, leaf in paths(part, (*prefix, name)).items()}


@given(TREES, TREES)
def test_every_leaf_of_the_change_is_in_the_merged_tree(base, change):
    merged = merge(base, change)
    leaves = {path: leaf for path, leaf in paths(change).items() if leaf != {}}
    assert leaves.items() <= paths(merged).items()
    assert merge(base, {}) == base
    assert merge(merged, change) == merged


def test_an_arm_is_its_base_with_the_changes_and_the_shared_sections():
    changes = {
        "algorithm": {"entropy_weight": 0.05, "advantage": {"method": "leave_one_out"}},
        "reward": {"heatmap_weight": 0.3},
        "training": {"epochs": 1},
    }
    arms = resolve(loo={"base": "grpo", "set": changes, "rule": "greedy"})
    assert list(arms) == ["supervised", "grpo", "loo"]
    loo, grpo = arms["loo"], arms["grpo"]
    assert loo.algorithm.advantage.method == "leave_one_out"
    assert loo.algorithm.advantage.std == grpo.algorithm.advantage.std
    assert (loo.algorithm.entropy_weight.kind, loo.algorithm.entropy_weight.start) == ("constant", 0.05)
    assert grpo.algorithm.entropy_weight.kind == "linear"
    assert (loo.parameters["reward"]["heatmap_weight"], grpo.parameters["reward"]["heatmap_weight"]) == (0.3, 0.0)
    assert (loo.training.epochs, grpo.training.epochs) == (1, 2)
    assert loo.parameters["model"] == grpo.parameters["model"]
    assert loo.description.rule == "greedy"
    assert "data" not in loo.parameters
    assert loo.sections["data"].image_size == 32


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (
            {"base": "grpo", "set": {"algorithm": {"kl_wieght": 0}}},
            r"^attention\.compare\.arms\.x\.set\.algorithm\.kl_wieght must be a parameter of this project, got an unknown name; "
            r"did you mean kl_weight\?$",
        ),
        (
            {"base": "grpo", "set": {"algorithm": {"entropy_weight": {"kind": "linear", "strat": 1}}}},
            r"^attention\.compare\.arms\.x\.set\.algorithm\.entropy_weight\.strat must be a parameter .*; did you mean start\?$",
        ),
        ({"base": "grpo", "set": {"modle": {}}}, r"x\.set must name sections among .*got 'modle'; did you mean model\?$"),
        ({"base": "grpo", "set": {"data": {"image_size": 64}}}, r"x\.set must name sections among .*got 'data'"),
        ({"base": "grppo"}, r"^attention\.compare\.arms\.x\.base must be one of supervised, grpo, got 'grppo'"),
        (
            {"base": "grpo", "set": {"training": {"epochs": 0}}},
            r"x\.set\.training\.epochs must be greater than or equal to 1, got 0",
        ),
        ({"base": "grpo", "set": {"training": {"epochs": None}}}, r"x\.set\.training\.epochs must be a valid integer, got None"),
        (
            {"base": "grpo", "set": {"algorithm": {"name": "ppo"}}},
            r"x\.set\.algorithm: advantage\.baseline must be value for name = ppo",
        ),
    ],
)
def test_what_is_wrong_is_named_with_arm_and_path(arm, message):
    with pytest.raises(ValueError, match=message):
        resolve(x=arm)
