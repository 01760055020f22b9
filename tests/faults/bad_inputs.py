"""Inputs that must be refused: parameters with a wrong name, a wrong type or a value outside their range, drawn from all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from disturbed import Bench, judge_refusal
from fault_outcomes import Outcome
from projects import ROOT, forget_results, tree

ONE_FILE = "conf/smoke/parameters_all.yml"
# Free text, free numbers, and what only another choice reads; a wrong value of another kind is still refused.
FREE = ("seed", "root", "manifest", "columns", "path")
# Words in whose place a number may stand.
OR_NUMBER = ("failure",)


def bad_parameters(bench: Bench) -> Iterator[Outcome]:
    """Give one wrong parameter to a run over an earlier result."""
    fault = "a wrong parameter"
    parameters = _one_file(bench.project)
    for task in bench.tasks:
        limit = bench.expected(task)[2] * 20  # seconds, first of all: it runs in the same project
        forget_results(bench.project)
        bench.run("--pipelines", task, "--params", "seed=1")
        before = tree(bench.project / "data")
        cases = list(wrong_values(task))
        bench.random.shuffle(cases)
        for path, value in cases[: -(-bench.bad_inputs // len(bench.tasks))]:
            _write(bench.project, parameters, path, value)
            done = bench.start(bench.project, "--pipelines", task)
            if done.wait(limit) is None:
                done.kill(whole_group=True)
            _write(bench.project, parameters)
            yield judge_refusal(fault, f"{'.'.join(path)}: {value!r}", done, before=before, data=bench.project / "data")
            before = tree(bench.project / "data")  # of what was accepted, too: each case is judged by itself


def wrong_values(task: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield parameters of a task's training with values that they cannot have, and names that are none."""
    for file in sorted((ROOT / "conf/base" / task).glob("parameters_training.yml")):
        for path, value in leaves(yaml.safe_load(file.read_text())):
            yield (*path[:-1], path[-1] + "x"), value
            if any(part in FREE for part in path) or value is None:
                continue
            if isinstance(value, bool):
                yield path, "perhaps"
            elif isinstance(value, int | float):
                yield path, "many"
                yield path, float("nan")
                yield path, [value]
            elif isinstance(value, str):
                yield path, f"{value}s"
                yield path, [3.5] if path[-1] in OR_NUMBER else 3.5


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and value of every entry that holds no others."""
    if isinstance(values, Mapping) and values:
        for name, inner in values.items():
            yield from leaves(inner, (*path, str(name)))
    elif not isinstance(values, list | Mapping):
        yield path, values


def _one_file(project: Path) -> dict[str, Any]:
    """Put the parameters of the project's smoke environment into one file, and return them: a name may stand in one file only."""
    file = project / ONE_FILE
    parameters: dict[str, Any] = {}
    for path in sorted(file.parent.glob("*.yml")):
        parameters = merged(parameters, yaml.safe_load(path.read_text()) or {})
        path.unlink()
    file.write_text(yaml.safe_dump(parameters))
    return parameters


def merged(values: Any, others: Any) -> Any:
    """Return the values, replaced or joined by the others, entry by entry."""
    if not (isinstance(values, Mapping) and isinstance(others, Mapping)):
        return others
    return {**values, **{name: merged(values.get(name), inner) for name, inner in others.items()}}


def _write(project: Path, parameters: Mapping[str, Any], path: tuple[str, ...] = (), value: Any = None) -> None:
    """Write the parameters with one of them wrong, or as they are."""
    nested: Any = value
    for name in reversed(path):
        nested = {name: nested}
    (project / ONE_FILE).write_text(yaml.safe_dump(merged(parameters, nested) if path else parameters))
