"""Arms run in the order of the list, whatever their names are."""

from typing import Any

import pytest
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.arms import arms_of, with_arms
from grpo_pipeline.pipelines.boxes import TRAINS
from grpo_pipeline.pipelines.of_task import task_pipelines
from grpo_pipeline.pipelines.training.turns import in_turn, with_turns
from grpo_pipeline.tasks import BUILT_IN, find_task


def same(*values: Any) -> Any:
    return values


def node(name: str, reads: list[str] | None, writes: str, namespace: str) -> Node:
    return Node(same, reads, writes, name=name, namespace=namespace)


def test_of_the_nodes_that_are_ready_those_of_an_earlier_arm_run_first() -> None:
    nodes = [
        node("make", None, "data", "t.data"),
        node("audit", ["data"], "told", "t.audit"),
        node("z", ["data"], "other", "u.c"),
    ]
    for arm in ("a", "b", "c"):
        nodes += [
            node("build", ["data"], f"{arm}.state", f"t.{arm}"),
            node("step", [f"{arm}.state"], f"{arm}.out", f"t.{arm}.probe"),
        ]
    found = with_turns(Pipeline(nodes), "t", ["c", "a", "b"])
    # The nodes of no arm, and of another task, come first among those that are ready.
    wanted = ["t.data.make", "t.audit.audit", "u.c.z", "t.c.build", "t.a.build", "t.b.build"]
    assert [one.name for one in found.nodes] == [*wanted, "t.c.probe.step", "t.a.probe.step", "t.b.probe.step"]
    assert {*found.nodes} == {*nodes}
    parts = [
        found.filter(from_nodes=["t.a.build", "t.b.build", "t.c.build"]),
        found + Pipeline([]),
        Pipeline(found.nodes, tags="x"),
    ]
    assert [[one.name for one in part.nodes if one.short_name == "build"] for part in parts] == [
        ["t.c.build", "t.a.build", "t.b.build"]
    ] * 3


def test_a_node_in_its_turn_is_the_node_that_it_was() -> None:
    plain = node("build", ["x"], "y", "t.a")
    turned = in_turn(plain, turn=3)
    assert (turned == plain, hash(turned) == hash(plain), turned.turn) == (True, True, 3)
    assert turned.tag(["x"]).turn == 3
    assert turned.run({"x": 1}) == {"y": (1,)}
    later, earlier = in_turn(node("a", None, "p", "t.b"), turn=4), node("z", None, "q", "t.data")
    assert sorted([later, turned, earlier]) == sorted([turned, earlier, later]) == [earlier, turned, later]
    assert sorted([earlier, turned]) == [earlier, turned]


@pytest.mark.parametrize("task", BUILT_IN)
def test_a_task_trains_its_arms_in_the_order_of_the_list(task: str) -> None:
    spec = find_task(task)
    arms = tuple(sorted(spec.arms, reverse=True))
    pipelines = task_pipelines(spec, {arm: spec.own.get(arm, ()) for arm in arms})
    for name in (task, f"{task}_train", f"{task}_step"):
        last = "train" if name != f"{task}_step" else "apply_update"
        trained = [
            node.namespace.split(".")[0].partition(TRAINS)[2]
            for node in pipelines[name].nodes
            if node.short_name.casefold() in (last, last.replace("_", " "))
        ]
        assert [arm for arm in trained if arm in arms] == list(arms)


def test_the_list_of_the_parameters_is_kept() -> None:
    arm = {"algorithm": {"proposal": "policy"}}
    given = {"attention": {"arms": ["zeta", "alpha", "mid"], "zeta": arm, "alpha": arm, "mid": arm}}
    assert list(arms_of(find_task("attention"), with_arms(given))) == ["zeta", "alpha", "mid"]
