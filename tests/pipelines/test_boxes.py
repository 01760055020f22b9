"""The results of a part are handed over as one dataset, what nobody reads is read back, and each part is a box."""

from typing import Any

import pandas as pd
import pytest
from kedro.io import DataCatalog, DatasetError, MemoryDataset
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner

from grpo_pipeline.pipelines.boxes import TRAINS, connect_evaluation, lookup_node, read_rest, with_boxes
from grpo_pipeline.tracking.arm_runs import node_key


def rows() -> tuple[list[int], str]:
    return [1, 2], "unread"


def told() -> dict[str, int]:
    return {"n": 3}


def compare(params: int, **arms: list[int]) -> dict[str, int]:
    return {arm: params * sum(rows) for arm, rows in arms.items()}


def draw(comparison: dict[str, int], told: dict[str, int], data: str) -> str:
    return f"{comparison} of {told['n']} in {data}"


def made() -> Pipeline:
    arms = [
        Node(rows, None, [f"t.{arm}.predictions", f"t.{arm}.frames"], name="predict", namespace=f"t.{arm}.results")
        for arm in ("b", "a")
    ]
    data = [
        Node(lambda: "all", None, "t.data", name="join", namespace="t.data"),
        Node(told, None, "t.data_report", name="check", namespace="t.data"),
    ]
    return Pipeline([*arms, *data])


def evaluate() -> Pipeline:
    read = {"params": "params:t.weight", "a": "t.a.predictions", "b": "t.b.predictions"}
    return Pipeline(
        [
            Node(compare, read, "t.comparison", name="compare", namespace="t.evaluation"),
            Node(draw, ["t.comparison", "t.data_report", "t.data"], "t.report", name="draw", namespace="t.report"),
        ]
    )


def whole() -> Pipeline:
    trained = ("a", "b")
    first = made() + connect_evaluation("t", made(), evaluate(), trained=trained)
    return first + read_rest("t", first, trained=trained)


def test_the_evaluation_gets_what_it_reads_through_one_dataset_per_part() -> None:
    pipeline = whole()
    catalog = DataCatalog({"params:t.weight": MemoryDataset(10)})
    results = SequentialRunner().run(pipeline, catalog)
    # 10 times the sum 1 + 2, and the 3 of the data's report.
    assert {name: dataset.load() for name, dataset in results.items()} == {"t.report": "{'a': 30, 'b': 30} of 3 in all"}
    crossing = {
        name
        for name in pipeline.all_outputs()
        for node in pipeline.nodes
        if name in node.inputs and part(node) != next(part(other) for other in pipeline.nodes if name in other.outputs)
    }
    assert crossing == {"t.a.results", "t.b.results", "t.data.results", "t.data"}
    # Wired alone, the evaluation begins with the files.
    alone = connect_evaluation("t", made(), evaluate(), trained=("a", "b"))
    assert alone.inputs() == {"params:t.weight", "t.a.predictions", "t.b.predictions", "t.data_report", "t.data"}


def part(node: Node) -> str:
    found = str(node.namespace).split(".")[1]
    return "evaluation" if found == "report" else found


def test_what_no_node_reads_is_read_in_its_part_and_nothing_else_is() -> None:
    found = {node.namespace: sorted(node.inputs) for node in whole().nodes if node.short_name == "read_results"}
    assert found == {"t.a.results": ["t.a.frames"], "t.b.results": ["t.b.frames"]}
    assert whole().outputs() == {"t.report"}


def test_a_file_that_cannot_be_read_back_ends_the_run_that_wrote_it() -> None:
    class Broken(MemoryDataset):
        def load(self) -> Any:
            raise OSError("damaged")

    catalog = DataCatalog({"params:t.weight": MemoryDataset(1), "t.a.frames": Broken()})
    with pytest.raises(DatasetError, match="damaged"):
        SequentialRunner().run(whole(), catalog)


def test_each_part_is_an_outermost_box_and_the_first_step_is_none_of_its_own() -> None:
    def node(name: str, namespace: str) -> Node:
        return Node(told, None, name, name=name, namespace=namespace)

    places = {
        "x": "t.data",
        "y": "t.a",
        "z": "t.a.probe.reward",
        "s": "t.a.start",
        "r": "t.report",
        "c": "t.compare",
    }
    found = with_boxes(Pipeline([node(*pair) for pair in places.items()]), "t", trained=("a",))
    assert {node._name: node.namespace for node in found.nodes} == {
        "x": "t-data",
        "y": "t-train_a",
        "z": "t-train_a.reward",
        "s": "t-train_a.start",
        "r": "t-evaluation.report",
        "c": "t-compare",
    }
    assert {node._name: node_key(node) for node in found.nodes} == {
        "x": None,
        "y": ("t", "a"),
        "z": ("t", "a"),
        "s": ("t", "a"),
        "r": None,
        "c": None,
    }
    assert TRAINS not in "t-data"


def test_a_lookup_saves_nothing_and_lets_what_lies_there_be_loaded() -> None:
    saved = []

    class Kept(MemoryDataset):
        def save(self, data: Any) -> None:
            saved.append(data)

        def load(self) -> Any:
            return pd.DataFrame({"x": [4, 5]})

    reads = Node(lambda table: table["x"].sum(), "t.before", "t.sum", name="add", namespace="t.data")
    pipeline = Pipeline([lookup_node("t.before", name="find", namespace="t.data"), reads])
    catalog = DataCatalog({"t.before": Kept()})
    assert SequentialRunner().run(pipeline, catalog)["t.sum"].load() == 9
    assert (pipeline.inputs(), saved) == (set(), [False])
