"""Turn rows (box, outputs, function, inputs) into Kedro nodes, and run these as the training loop does."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kedro.pipeline import Node, Pipeline

ALGORITHM, TRAINING = "params:algorithm", "params:training"
PARAMETERS = {"algorithm": ALGORITHM, "training": TRAINING}
Row = tuple[str, str, Callable[..., Any], str]


def wire(*rows: Row) -> Pipeline:
    """Return the nodes of rows, which read downwards: an input is the last value of that name above, or comes from outside.

    A function may make a name anew. The last value has the name, those before it have a number behind it. An input has the name
    of the function's argument; one that is written with a question mark is left out where no row above makes it.
    """
    total = Counter(name for _, outputs, _, _ in rows for name in outputs.split())
    made: Counter[str] = Counter()

    def current(name: str) -> str:
        number = made[name]
        return PARAMETERS.get(name, name if number in (0, total[name]) else f"{name}_{number}")

    nodes = []
    for box, outputs, function, inputs in rows:
        read = {}
        for name in inputs.split():
            plain = name.removesuffix("?")
            if plain == name or made[plain]:
                read[plain] = current(plain)
        made.update(outputs.split())
        written = [current(name) for name in outputs.split()]
        made_here = written[0] if len(written) == 1 else written
        nodes.append(
            Node(function, read or None, made_here, name=function.__name__, namespace=box or None)
        )
    return Pipeline(nodes)


def fold(nodes: Sequence[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Run nodes in their order; returns the values with what they have made. Values travel by reference."""
    found = dict(values)
    for node in nodes:
        found |= node.run({name: found[name] for name in node.inputs})
    return found
