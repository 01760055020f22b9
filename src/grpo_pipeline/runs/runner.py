"""Run nodes in an order that finishes an arm while another arm is still trained."""

import logging
from typing import Any

from kedro.io import CatalogProtocol
from kedro.pipeline import Node, Pipeline
from kedro.runner import SequentialRunner

from grpo_pipeline.core.objective.algorithm import AlgorithmParams


class ReadyFirst(SequentialRunner):
    """Kedro's sequential runner, but nodes that wait for a training come after all nodes that do not.

    Arms are trained in processes of their own (``executor``). While one of them goes on, what follows the training of another is
    done here: so a control, which ends first, is waited for first.
    """

    @property
    def _logger(self) -> logging.Logger:
        return logging.getLogger(
            SequentialRunner.__module__
        )  # Kedro's name, by which its lines are muted

    def _run(
        self, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any], *args: Any, **kwargs: Any
    ) -> None:
        super()._run(InOrder(order(pipeline, catalog)), catalog, *args, **kwargs)


class InOrder(Pipeline):
    """A pipeline with an order of its nodes, in the place of Kedro's."""

    def __init__(self, nodes: list[Node]) -> None:
        """Store the order, in which each node comes after those that it depends on."""
        self._order = nodes
        super().__init__(nodes)

    @property
    def nodes(self) -> list[Node]:
        """List the nodes in that order."""
        return list(self._order)


def order(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> list[Node]:
    """Order the nodes as Kedro does, but each that waits for a training as late as possible, controls first."""
    from grpo_pipeline.pipelines.training import (
        at_once,  # it imports torch; by now the pipeline has
    )

    before, waiting, rest = pipeline.node_dependencies, list[Node](), pipeline.nodes
    for node in rest:
        if node.func is at_once.train:
            waiting.append(node)
    waiting.sort(key=lambda node: _learns(node, pipeline, catalog))
    found: dict[Node, None] = {}
    while len(found) < len(rest):
        ready = [node for node in rest if node not in found and before[node] <= found.keys()]
        quick = next((node for node in ready if node not in waiting), None)
        found[quick or next(node for node in waiting if node in ready)] = None
    return list(found)


def _learns(node: Node, pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> bool:
    """Check whether the arm of a waiting node has a policy to train."""
    (makes_ready,) = (other for other in pipeline.nodes if node.inputs[0] in other.outputs)
    name = next(name for name in makes_ready.inputs if name.endswith(".algorithm"))
    return AlgorithmParams.model_validate(catalog.load(name)).losses.policy is not None
