"""Let arms run in the order in which the parameters name them.

Of the nodes that wait for nothing more, Kedro runs the one first whose name comes first in the alphabet. A node that is
compared by the place of its arm before its name takes its turn.
"""

from collections.abc import Sequence
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.training.at_once import train


class NodeInTurn(Node):
    """A node of an arm, which comes after those of no arm and of the arms before its own.

    Attributes:
        turn: place of its arm, counted from 1.
    """

    turn = 0

    def __lt__(self, other: Any) -> bool:
        """Say whether this node runs before another one that is ready."""
        return _key(self) < _key(other) if isinstance(other, Node) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        """Say whether another node that is ready runs before this one; Python asks here first where that is a plain one."""
        return _key(self) > _key(other) if isinstance(other, Node) else NotImplemented

    def _copy(self, **changes: Any) -> "Node":
        return in_turn(super()._copy(**changes), turn=self.turn)


def _key(node: Node) -> tuple[Any, ...]:
    return (getattr(node, "turn", 0), *node._unique_key)


def in_turn(node: Node, *, turn: int) -> NodeInTurn:
    """Return the same node with a turn."""
    found = NodeInTurn.__new__(NodeInTurn)
    vars(found).update(vars(node))
    found.turn = turn
    return found


def with_turns(pipeline: Pipeline, task: str, arms: Sequence[str]) -> Pipeline:
    """Return a pipeline whose arms run in this order, wherever they are equally far."""
    turns = {arm: place for place, arm in enumerate(arms, start=1)}
    return Pipeline([_with_turn(node, task, turns) for node in pipeline.nodes])


def _with_turn(node: Node, task: str, turns: dict[str, int]) -> Node:
    of, _, rest = (node.namespace or "").partition(".")
    turn = turns.get(rest.partition(".")[0], 0) if of == task else 0
    if (
        turn and node.func is train
    ):  # after all others: when the first arm begins, every one is ready
        turn += len(turns)
    return in_turn(node, turn=turn) if turn else node
