"""The order of a run's nodes: Kedro's, but what waits for a training comes last, and what follows one is done beside another."""

from itertools import pairwise
from typing import Any

import pytest
from kedro.framework.session import KedroSession
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner
from tiny import tiny

from grpo_pipeline.pipelines.training import at_once
from grpo_pipeline.pipelines.training.pipeline import create_pipeline
from grpo_pipeline.runs.runner import InOrder, ReadyFirst, order
from grpo_pipeline.session import TrackedSession


def of_arms(*arms: str) -> tuple[Pipeline, DataCatalog]:
    kit = tiny("attention")
    algorithms = {arm: kit.algorithm_params("supervised" if arm in ("supervised", "zero") else "grpo") for arm in arms}
    catalog = DataCatalog({f"params:attention.{arm}.algorithm": MemoryDataset(given) for arm, given in algorithms.items()})
    return sum((create_pipeline("attention", arm) for arm in arms), Pipeline([])), catalog


@pytest.mark.parametrize("arms", [("supervised", "grpo"), ("grpo", "zero", "other"), ("grpo",)])
def test_each_arm_comes_to_its_end_before_the_next_is_waited_for_and_controls_first(arms: tuple[str, ...]) -> None:
    pipeline, catalog = of_arms(*arms)
    found = order(pipeline, catalog)
    assert sorted(found) == sorted(pipeline.nodes)
    done: set[Any] = set()
    for node in found:
        assert pipeline.node_dependencies[node] <= done
        done.add(node)
    waits = [place for place, node in enumerate(found) if node.func is at_once.train]
    awaited = [node.namespace.split(".")[1] for node in (found[place] for place in waits)]
    assert awaited == sorted(arms, key=lambda arm: (arm not in ("supervised", "zero"), arm))
    begun = {node.namespace.split(".")[1] for node in found[: waits[0]] if node.short_name == "make_ready"}
    assert begun == set(arms)  # all may begin with the first
    for (place, after), arm in zip(pairwise([*waits, len(found)]), awaited, strict=True):
        assert {node.namespace.split(".")[1] for node in found[place:after]} == {arm}


def test_a_pipeline_in_order_is_the_same_pipeline() -> None:
    pipeline, catalog = of_arms("supervised", "grpo")
    found = InOrder(nodes := order(pipeline, catalog))
    assert found.nodes == nodes != pipeline.nodes
    assert (found.inputs(), found.outputs()) == (pipeline.inputs(), pipeline.outputs())


@pytest.mark.parametrize(
    ("given", "wanted"), [({"runner": SequentialRunner()}, ReadyFirst), ({}, ReadyFirst), ({"runner": None}, ReadyFirst)]
)
def test_the_session_takes_this_order_where_nobody_asks_for_another(monkeypatch, given: dict[str, Any], wanted: type) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(KedroSession, "run", lambda session, *args, **kwargs: taken.append(kwargs["runner"]))
    session = object.__new__(TrackedSession)
    session.run("attention_data", **given)
    assert [type(runner) for runner in taken] == [ReadyFirst]


def test_another_runner_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(SequentialRunner):
        pass

    taken: list[Any] = []
    monkeypatch.setattr(KedroSession, "run", lambda session, *args, **kwargs: taken.append(kwargs["runner"]))
    object.__new__(TrackedSession).run("attention_data", runner=(own := Own()))
    assert taken == [own]
