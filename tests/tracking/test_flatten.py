"""Nested parameters become flat names and short texts, and nothing is lost on the way."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grpo_pipeline.tracking.flat_parameters import flatten, sanitise, shorten, to_plain
from grpo_pipeline.tracking.logged_parameters import arm_parameters, parameters_read, run_parameters


class Model(BaseModel):
    image_size: int = 64
    widths: tuple[int, ...] = (8, 16)


@dataclass(frozen=True)
class Data:
    root: Path


def test_models_dataclasses_and_lists():
    parameters = {"seed": 0, "attention": {"model": Model(), "data": Data(Path("data/x")), "note": None, "arms": {}, "on": True}}
    assert flatten(parameters) == {
        "seed": "0",
        "attention.model.image_size": "64",
        "attention.model.widths": "[8, 16]",
        "attention.data.root": "data/x",
        "attention.note": "None",
        "attention.arms": "{}",
        "attention.on": "True",
    }


def test_plain_parameters_survive_yaml():
    plain = to_plain({"model": Model(), "names": {"b", "a"}, 3: (1.5, None)})
    assert plain == {"model": {"image_size": 64, "widths": [8, 16]}, "names": ["a", "b"], "3": [1.5, None]}
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain


keys = st.text("abc", min_size=1, max_size=3)
trees = st.recursive(st.integers(), lambda children: st.dictionaries(keys, children, min_size=1, max_size=4), max_leaves=20)


@given(st.dictionaries(keys, trees, max_size=4))
def test_each_leaf_has_one_name(tree):
    def walk(value, path):
        if not isinstance(value, dict):
            return [(".".join(path), str(value))]
        return [leaf for key, item in value.items() for leaf in walk(item, [*path, key])]

    assert sorted(flatten(tree).items()) == sorted(walk(tree, []))


DEFAULTS = {
    "seed": 0, "resume": "never",
    "attention": {
        "model": {"size": 8, "depth": 2}, "grpo": {"rl_weight": 1.0, "clip": 0.2}, "supervised": {"rl_weight": 0.0, "clip": 0.2},
    },
    "dialogue": {"model": "t5"},
}  # fmt: skip
GIVEN = {
    "seed": 3, "resume": "never",
    "attention": {
        "model": {"size": 16, "depth": 2}, "grpo": {"rl_weight": 1.0, "clip": 0.3}, "supervised": {"rl_weight": 0.0, "clip": 0.3},
        "compare": {"seeds": [0]}, "new": {"rl_weight": 1.0, "clip": 0.3, "only": 1},
    },
    "dialogue": {"model": "t6"},
}  # fmt: skip
READ = {"seed", "resume", "attention.model", "attention.grpo", "attention.supervised", "attention.new"}


def test_a_run_has_the_parameters_that_it_reads_and_that_are_not_the_defaults():
    found = run_parameters(flatten(GIVEN), flatten(DEFAULTS), read=READ - {"attention.new"})
    assert found == {"seed": "3", "attention.model.size": "16", "attention.grpo.clip": "0.3", "attention.supervised.clip": "0.3"}
    assert run_parameters(flatten(GIVEN), flatten(DEFAULTS), read={"dialogue"}) == {"dialogue.model": "t6"}
    assert run_parameters(flatten(GIVEN), flatten(GIVEN), read={"attention"}) == {}
    assert run_parameters({"a.bc": "1"}, {}, read={"a.b"}) == {}  # a path is no beginning of a name


def test_two_arms_differ_in_values_not_in_names():
    flat, arms = flatten(GIVEN), ["grpo", "supervised", "new"]
    changed = run_parameters(flat, flatten(DEFAULTS), read=READ)
    grpo, supervised, new = (arm_parameters(flat, changed, task="attention", arm=arm, arms=arms) for arm in arms)
    shared = {"seed": "3", "attention.model.size": "16", "attention.arm.clip": "0.3"}
    # What differs between the arms is told, also where it is the default; what is the default in all of them is not.
    assert grpo == {**shared, "attention.arm.rl_weight": "1.0"}
    assert supervised == {**shared, "attention.arm.rl_weight": "0.0"}
    assert new == {**shared, "attention.arm.rl_weight": "1.0", "attention.arm.only": "1"}
    alone = arm_parameters(flat, {}, task="attention", arm="grpo", arms=["grpo"])
    assert alone == {}


def test_the_parameters_of_a_pipeline_are_those_that_its_nodes_name():
    from kedro.pipeline import Node, Pipeline

    nodes = [Node(print, ["params:t.model", "params:seed", "parameters"], None, name="a", namespace="t.data")]
    assert parameters_read(Pipeline(nodes), ["t"], is_grid=False) == {"t.model", "seed", "threads"}
    # Trials are made of all parameters of their task.
    assert parameters_read(Pipeline(nodes), ["t", "u"], is_grid=True) == {"t.model", "seed", "threads", "t", "u"}
    gone_on = [Node(print, ["params:resume", "params:seed"], None, name="a", namespace="t.data")]
    assert parameters_read(Pipeline(gone_on), ["t"], is_grid=True) == {"seed", "threads"}


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("reward/mean", "reward/mean"),
        ("sensitivity@80%", "sensitivity_80_"),
        ("GG>=2", "GG__2"),
        ("a//b", "a/b"),
        ("/a/", "a"),
        ("", "_"),
    ],
)
def test_names_that_mlflow_takes(name, clean):
    from mlflow.utils.validation import _validate_metric_name

    assert sanitise(name) == clean
    _validate_metric_name(sanitise(name))


def test_a_long_value_is_cut_and_says_so():
    assert shorten("x" * 500) == "x" * 500
    cut = shorten("x" * 501)
    assert len(cut) == 500
    assert cut.endswith("x … (501 characters; all of it in config/parameters.yml)")
