"""Group the nodes into the boxes that Kedro-Viz opens with: data, audit, each training, evaluation.

A box is an outermost namespace, ``<task>-<part>``; with a dot between them, all of them would be in one box, the task. Kedro-Viz
draws a dataset outside of the boxes if another box reads it, or if no node does. Therefore a box hands over a single dataset, and
reads its unread datasets itself (docs/decisions/0081-boxes-of-the-graph.md).
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.runs.result_folders import LOOKS_UP

EVALUATION = "evaluation"
# Parts without a box of their own: the page belongs to the evaluation, the first step to the training.
INSIDE = {"report": "evaluation.report"}
FIRST_STEP = "probe"
TRAINS = "-train_"  # between the task and an arm or a stage


@contextmanager
def unlike_names() -> Iterator[None]:
    """Silence two warnings of Kedro: about boxes named unlike their datasets, and about pictures of nodes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One or more dataset names|The 'preview_fn' feature")
        yield


def collect_results(**results: Any) -> dict[str, Any]:
    """Collect the results of a part of the pipeline for the evaluation, by name."""
    return results


def open_results(**parts: Mapping[str, Any]) -> tuple[Any, ...]:
    """Unpack the results of each part, in the order in which they were collected."""
    return tuple(result for results in parts.values() for result in results.values())


def read_results(*results: Any) -> None:
    """Read the results that no other node reads, so that the run that wrote an unreadable file fails."""


def save_nothing() -> Literal[False]:
    """Save nothing, so that the stored dataset is loaded."""
    return False


def lookup_node(dataset: str, *, name: str, namespace: str) -> Node:
    """Build a node in front of a stored dataset, so that Kedro-Viz draws the dataset inside the box."""
    return Node(save_nothing, None, dataset, name=name, namespace=namespace, tags=[LOOKS_UP])


def connect_evaluation(
    task: str, made: Pipeline, evaluate: Pipeline, *, trained: Collection[str]
) -> Pipeline:
    """Connect the evaluation to the other parts by a single dataset of results per part.

    Args:
        task: prefix of the catalogue names.
        made: the pipeline before the evaluation.
        evaluate: the evaluation and its report, with ``<task>.<part>…`` as inputs.
        trained: the parts that train, arms and stages.
    """
    shared = {f"{task}.task", f"{task}.data"}  # drawn between the boxes, whoever reads them
    read = _by_part(made, evaluate.inputs() - shared, without=(EVALUATION,))
    handed = {part: f"{task}.{part}.results" for part in read}
    collect = [
        _node(
            collect_results,
            {_short(name): name for name in names},
            handed[part],
            _last(task, part, trained),
        )
        for part, names in read.items()
    ]
    opened = {
        name: f"{task}.read.{name.partition('.')[2].replace('.', '_')}"
        for names in read.values()
        for name in names
    }
    unpack = _node(open_results, handed, [*opened.values()], f"{task}.{EVALUATION}")
    return Pipeline([*collect, unpack]) + Pipeline(evaluate, inputs=opened)


def read_rest(task: str, whole: Pipeline, *, trained: Collection[str]) -> Pipeline:
    """Build the nodes that read the otherwise unread datasets of a whole pipeline, up to the evaluation."""
    left = _by_part(whole, whole.outputs(), without=(EVALUATION, *INSIDE))
    return Pipeline(
        [
            _node(read_results, names, None, _last(task, part, trained))
            for part, names in left.items()
        ]
    )


def with_boxes(pipeline: Pipeline, task: str, *, trained: Collection[str]) -> Pipeline:
    """Return the pipeline with an outermost namespace per box."""

    def box(namespace: str) -> str:
        _, part, *inner = namespace.split(".")
        name = TRAINS + part if part in trained else f"-{INSIDE.get(part, part)}"
        return ".".join([task + name, *(place for place in inner if place != FIRST_STEP)])

    return Pipeline([node._copy(namespace=box(str(node.namespace))) for node in pipeline.nodes])


def _by_part(
    made: Pipeline, wanted: Collection[str], *, without: Collection[str]
) -> dict[str, list[str]]:
    """Sort the wanted datasets by the part whose nodes make them: part -> sorted names."""
    found: dict[str, list[str]] = {}
    for node in made.nodes:
        part = str(node.namespace).split(".")[1]
        if part not in without and (names := [name for name in node.outputs if name in wanted]):
            found.setdefault(part, []).extend(names)
    return {part: sorted(found[part]) for part in sorted(found)}


def _node(function: Any, inputs: Any, outputs: Any, namespace: str) -> Node:
    return Node(
        function,
        inputs,
        outputs,
        name=function.__name__,
        namespace=namespace,
        tags=[namespace.partition(".")[0]],
    )


def _last(task: str, part: str, trained: Collection[str]) -> str:
    return f"{task}.{part}" + (".results" if part in trained else "")


def _short(name: str) -> str:
    return name.rpartition(".")[2]
