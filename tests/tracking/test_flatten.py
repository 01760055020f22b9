"""Nested parameters become flat names and short texts, and nothing is lost on the way."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grpo_pipeline.tracking.metrics import arm_parameters, flatten, sanitise, shorten, to_plain


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


PARAMETERS = {
    "seed": 3,
    "resume": "auto",
    "attention": {"model": {"size": 8}, "grpo": {"rl_weight": 1.0}, "supervised": {"rl_weight": 0.0}},
    "dialogue": {"model": "t5"},
}


def test_two_arms_differ_in_values_not_in_names():
    arms = ["grpo", "supervised"]
    grpo, supervised = (flatten(arm_parameters(PARAMETERS, task="attention", arm=arm, arms=arms)) for arm in arms)
    assert grpo == {"seed": "3", "resume": "auto", "attention.model.size": "8", "attention.arm.rl_weight": "1.0"}
    assert supervised == {**grpo, "attention.arm.rl_weight": "0.0"}


def test_a_section_of_arms_is_reduced_to_the_own_one():
    parameters = {"attention": {"arms": {"grpo": {"k": 3}, "ppo": {"k": 4}}, "size": 8}}
    selected = arm_parameters(parameters, task="attention", arm="ppo", arms=["grpo", "ppo"])
    assert selected == {"attention": {"arm": {"k": 4}, "size": 8}}


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
