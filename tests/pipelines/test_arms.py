"""Arms as the parameters describe them."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.arms import arms_of, described_arms, with_arms
from grpo_pipeline.pipelines.of_task import task_pipelines
from grpo_pipeline.pipelines.params import sections
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.runs.parameters import check_parameters
from grpo_pipeline.tasks import TASKS, find_task

SPEC = find_task("attention")


def described(**changes: Any) -> dict[str, Any]:
    """Return parameters with two arms, and what an own section of an arm is merged onto."""
    attention = {
        "arms": ["supervised", "grpo"], "supervised": {"algorithm": {"losses": {"supervised": {"weight": 1.0}}}},
        "grpo": {"algorithm": {
            "advantage": {"method": "group", "std": "sample"}, "losses": {"policy": {"clip": 0.2}, "kl": {"weight": 0.1}},
        }},
        "training": {"epochs": 12, "optimizer": {"clip": "joint", "rate": 0.1}}, "model": {"points": 3},
        "evaluation": {"control": "supervised", "baseline_arm": "grpo"},
    }  # fmt: skip
    return {"seed": 0, "attention": {**attention, **changes}}


def test_an_arm_has_what_it_does_not_say_from_its_base() -> None:
    near = {"base": "grpo", "algorithm": {"advantage": {"method": "batch"}}, "training": {"optimizer": {"rate": 0.5}}}
    far = {"base": "near", "algorithm": {"losses": {"kl": None}}, "training": {"epochs": 1}}
    found = with_arms(described(arms=["far", "supervised"], near=near, far=far))
    assert found["attention"]["far"] == {
        "algorithm": {"advantage": {"method": "batch"}, "losses": {"policy": {"clip": 0.2}, "kl": None}},
        "training": {"epochs": 1, "optimizer": {"clip": "joint", "rate": 0.5}},
    }
    assert found["attention"]["grpo"] == described()["attention"]["grpo"]
    assert arms_of(SPEC, found) == {"far": ("training",), "supervised": ()}
    assert with_arms(found) == found  # a loader may hand on what it has completed


def test_the_parameters_of_an_arm_that_is_not_trained_are_known() -> None:
    """``attention.arms=grpo`` must work in an environment that describes a third arm."""
    near = {"base": "grpo", "algorithm": {"losses": {"kl": {"weight": 0.5}}}}
    given = with_arms(described(arms=["grpo"], near=near))
    assert described_arms("attention", given["attention"]) == ["supervised", "grpo", "near"]
    loader = ReplacingConfigLoader(
        "conf", base_env="base", default_run_env="base", runtime_params={"attention": {"near": near, "arms": "grpo"}}
    )
    given = loader["parameters"]
    check_parameters(given, loader, ["dialogue"])
    given["attention"]["nearer"] = {"x": 1}
    with pytest.raises(ValueError, match="attention.nearer must be a parameter of this project, got an unknown name"):
        check_parameters(given, loader, ["dialogue"])


def test_an_absent_control_is_named_and_the_first_arm_takes_its_place() -> None:
    for arms, *expected in (
        (["supervised", "grpo"], "supervised", "grpo", None), ("grpo", "grpo", "grpo", "supervised"),
        ("grpo+supervised", "supervised", "grpo", None), (["other", "grpo"], "other", "grpo", "supervised"),
        (["supervised"], "supervised", "supervised", None),
    ):  # fmt: skip
        found = with_arms(described(arms=arms, other={"base": "grpo"}))["attention"]["evaluation"]
        assert [found["control"], found["baseline_arm"], found.get("not_run")] == expected, arms


def test_what_is_no_arm_is_refused() -> None:
    for changes, text in (
        ({"arms": ["grop"]}, "attention.arms must be among supervised, grpo, got 'grop'; did you mean grpo\\?"),
        ({"arms": ["x", "grpo"]}, "got 'x'; describe it in attention.x, with base: or algorithm:"),
        ({"arms": ["model"]}, "attention.arms must be among supervised, grpo, got 'model'"),
        ({"arms": []}, r"must be different names, at least one, got \[\]; choose among supervised, grpo"),
        ({"arms": "grpo+grpo"}, "must be different names, at least one, got 'grpo\\+grpo'"),
        ({"arms": ["Own"], "Own": {"base": "grpo"}}, "must be named by small letters, digits and _, got 'Own'; rename it"),
        ({"arms": ["report"], "report": {"base": "grpo"}}, "and not data, audit, .*, got 'report'; rename it"),
        ({"own": {"base": "gone"}}, "attention.own.base must be another arm, got 'gone'; name one of supervised, grpo"),
        ({"a": {"base": "b"}, "b": {"base": "a"}}, "attention.b.base must be another arm, got 'a'"),
        ({"arms": ["own"], "own": {"base": "grpo", "trainin": {}}}, "of attention, got 'trainin'; did you mean training"),
        ({"pretraining": {"trainin": {}}}, "attention.pretraining must hold sections .*, got 'trainin'; did you mean training"),
    ):
        with pytest.raises(ValueError, match=text):
            with_arms(described(**changes))


def test_pipelines_and_types_are_those_of_the_arms() -> None:
    arms = {"plain": (), "own": ("training", "model")}
    whole = task_pipelines(SPEC, arms)["attention"]
    trained = {node.namespace for node in whole.nodes if node._name == "train"}
    assert trained == {"attention-train_plain", "attention-train_own"}
    assert {"params:attention.own.training", "params:attention.own.model", "params:attention.training"} <= whole.inputs()
    assert not [name for name in whole.all_outputs() if name.startswith(("attention.grpo.", "attention.supervised."))]
    assert {"attention.own.task", "attention.own.predictions", "attention.plain.predictions"} <= whole.all_outputs()
    assert "attention.plain.task" not in whole.datasets()
    types, of = sections(SPEC, arms), {"own.model": "model", "own.training": "training", "plain.algorithm": "own.algorithm"}
    assert all(types[name] is types[other] for name, other in of.items())


def test_an_optional_stage_is_wired_where_the_parameters_have_it() -> None:
    """Its section says only what differs from the task's."""
    section = described(pretraining={"training": {"epochs": 3}})["attention"]
    whole = with_arms({"attention": section})["attention"]
    assert whole["pretraining"] == {
        "algorithm": whole["supervised"]["algorithm"] | {"proposal": "none"},
        "training": whole["training"] | {"epochs": 3},
    }
    assert with_arms({"attention": whole})["attention"] == whole
    assert "pretraining" not in described_arms("attention", whole)
    off, null, on = (SPEC.with_stages_of(given) for given in ({}, {"pretraining": None}, whole))
    assert off == null == SPEC
    assert (off.stages, on.stages) == ((), ("pretraining",))
    assert sections(on).keys() - sections(off).keys() == {"pretraining.algorithm", "pretraining.training"}
    with warnings.catch_warnings(action="error"):
        plain, staged = (task_pipelines(spec)["attention"] for spec in (off, on))
    assert not [name for name in plain.datasets() if "pretraining" in name or "untrained" in name]
    assert {"attention.untrained_task", "attention.pretraining.model", "attention.task"} <= staged.all_outputs()


@pytest.mark.parametrize("task", TASKS)
def test_kedro_has_nothing_to_warn_of(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Datasets are named <task>.<arm>.<what>, each in the namespace of the node that reads or writes it."""
    monkeypatch.delattr(Node, "__dotted_dataset_name_warned__", raising=False)  # Kedro warns once in a process
    with warnings.catch_warnings(action="error"):
        task_pipelines(find_task(task))


def test_a_task_wires_its_nodes_in_its_namespace() -> None:
    stray = Pipeline([Node(len, "attention_a", "attention_b", name="stray")])
    made = Pipeline([Node(len, "attention_b", "attention.task", name="made", namespace="attention.data")])
    wiring = SimpleNamespace(create_pipeline=lambda: stray, create_preparation=lambda: made)
    message = 'node stray must be in a namespace of task attention, got None; give it namespace="attention.data"'
    with pytest.raises(ValueError, match=message):
        task_pipelines(SimpleNamespace(name="attention", stages=(), wiring=lambda: wiring), {"grpo": ()})
