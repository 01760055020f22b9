"""The numbers that a run left behind, by kind and name, and where two runs differ.

Files are found by how they end and by what is in them, not by their folders: an artefact that moved or was renamed is the same
artefact. Text is not read; every number is, but for those that say when, how fast and with which code it was computed.
"""

import csv
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

Numbers = dict[str, np.ndarray]  # name of a value -> the value
Artefacts = dict[str, Numbers]  # kind -> its numbers

KINDS = ("weights", "metric rows", "comparison", "tables", "reports", "MLflow", "data")
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT")
# Times, speeds, memory, process numbers and versions, as whole words of a name.
VOLATILE = re.compile(r"(^|[/_. ])(seconds|duration|time|elapsed|per_second|memory|bytes|pid|version|created)($|[/_. ])")


@dataclass(frozen=True)
class Difference:
    """How one kind of artefact compares: ``equal``, ``renamed`` (all values equal under other names) or ``differs``."""

    verdict: str
    n_values: int
    detail: str = ""


def read_artefacts(project: Path) -> Artefacts:
    """Collect every number below ``project``/data and of the metrics in ``project``/mlflow.db, by kind."""
    found: dict[str, Numbers] = {kind: {} for kind in KINDS}
    data = project / "data"
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        parts = _stable_parts(path.relative_to(data))
        if any(part.startswith(".") for part in parts) or parts[0].startswith(("01", "02")):
            continue
        is_data = parts[0].startswith(("03", "04", "05"))
        for kind, name, value in _read_file(path):
            label = f"{'/'.join(parts)} {name}"
            if kind == "weights" or not VOLATILE.search(name):
                found["data" if is_data else kind][label] = value
    if (project / "mlflow.db").is_file():
        found["MLflow"] = _read_mlflow(project / "mlflow.db")
    return found


def _stable_parts(path: Path) -> list[str]:
    """Leave out the folder of a version, and the folder that repeats its file's name around it."""
    parts = [part for part in path.parts if not STAMP.match(part)]
    return [part for part, after in zip(parts, [*parts[1:], ""], strict=True) if part != after]


def _read_file(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (kind, name, value) of each number in one file; a file of another format has none."""
    if path.suffix == ".safetensors":
        for name, tensor in load_file(path).items():
            exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
            yield "weights", name, exact.numpy()
    elif path.suffix in (".npy", ".npz"):
        loaded = np.load(path, allow_pickle=False)
        arrays = loaded if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}
        yield from (("tables", name, arrays[name]) for name in arrays if arrays[name].dtype.kind in "biufc")
    elif path.suffix == ".csv":
        yield from (("tables", name, column) for name, column in _read_table(path).items())
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if rows and isinstance(rows[0], list):  # a table: its columns stand in the first line
            yield from (("tables", name, column) for name, column in _json_columns(*rows).items())
        elif rows and "step" in rows[0]:
            yield from (("metric rows", name, value) for name, value in _series(rows).items())
        else:
            yield from (("tables", name, value) for name, value in _series(rows, by="").items())
    elif path.suffix == ".json" and path.name != "checkpoint.json":  # its generators' states and times are not results
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = "comparison" if isinstance(content, dict) and {"arms", "control"} <= content.keys() else "reports"
        yield from ((kind, name, np.float64(value)[None]) for name, value in _leaves(content))


def _read_table(path: Path) -> Numbers:
    """Return the columns of which every cell is a number or empty (NaN); columns of text and without any number are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    columns = {}
    for name, *cells in zip(*rows, strict=True) if rows else ():
        words = {"True": "1", "False": "0", "": "nan"}
        try:
            values = np.array([float(words.get(cell, cell)) for cell in cells])
        except ValueError:
            continue
        if values.size and not np.isnan(values).all():
            columns[name] = values
    return columns


def _json_columns(heads: list[str], *rows: dict[str, Any]) -> Numbers:
    """Return the columns of a table in JSON lines, by the rule of ``_read_table``."""
    columns = {}
    for name in heads:
        cells = [row[name] for row in rows]
        if all(cell is None or isinstance(cell, int | float) for cell in cells):
            values = np.array([np.nan if cell is None else float(cell) for cell in cells])
            if values.size and not np.isnan(values).all():
                columns[name] = values
    return columns


def _series(rows: list[dict[str, Any]], *, by: str = "step") -> Numbers:
    """Return key -> (position, value) of each row that has it, shape [rows, 2]; the position is its ``by``, or its number."""
    series = defaultdict(list)
    for index, row in enumerate(rows):
        for key, value in _leaves(row):
            if key != by:
                series[key].append((row.get(by, index), value))
    return {key: np.array(values, dtype=np.float64) for key, values in series.items()}


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield (path, number) of every number and truth value in a JSON document; the order of keys does not matter."""
    if isinstance(content, bool | int | float):
        yield path, float(content)
    elif isinstance(content, dict | list):
        for key, value in sorted(content.items()) if isinstance(content, dict) else enumerate(content):
            yield from _leaves(value, f"{path}.{key}".lstrip("."))


def _read_mlflow(store: Path) -> Numbers:
    """Return ``run key`` -> (step, value), shape [rows, 2] in order of steps; runs of one name in the order of their start."""
    query = "SELECT runs.name, key, step, value, is_nan FROM metrics JOIN runs USING (run_uuid) ORDER BY start_time, step, value"
    series = defaultdict(list)
    with sqlite3.connect(store) as connection:
        for run, key, step, value, is_nan in connection.execute(query):
            if not VOLATILE.search(key):
                series[f"{run} {key}"].append((step, float("nan") if is_nan else value))
    return {key: np.array(values, dtype=np.float64) for key, values in series.items()}


def compare(before: Numbers, after: Numbers) -> Difference:
    """Compare values of the same name; then the values without a partner, whatever they are called, as multisets."""
    if not before and not after:
        return Difference("equal", 0)
    changed = [name for name in before if name in after and not is_equal(before[name], after[name])]
    gone, new = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
    if changed and not gone and not new:
        return Difference("differs", len(after), f"{len(changed)} values; {first_difference(changed[0], before, after)}")
    loose_before, loose_after = (
        Counter(_digest(side[name]) for name in [*names, *changed]) for side, names in ((before, gone), (after, new))
    )
    if loose_before == loose_after:
        return Difference("renamed" if gone else "equal", len(after), f"{len(gone)} names" if gone else "")
    lost, added = loose_before - loose_after, loose_after - loose_before
    if changed:
        return Difference(
            "differs", len(after), f"{len(changed)} values, {_names(gone, new)}; {first_difference(changed[0], before, after)}"
        )
    first = [
        next((f"{said} {name}" for name in names if _digest(side[name]) in loose), "")
        for said, names, side, loose in (("only before:", gone, before, lost), ("only after:", new, after, added))
    ]
    return Difference("differs", len(after), f"{_names(gone, new)}; {', '.join(filter(None, first))}")


def is_equal(before: np.ndarray, after: np.ndarray) -> bool:
    """Compare bit by bit: NaN equals itself, 0.0 is not -0.0."""
    return before.dtype == after.dtype and before.shape == after.shape and before.tobytes() == after.tobytes()


def first_difference(name: str, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> str:
    """Say where two values of one name begin to differ, with both numbers."""
    one, other = before[name], after[name]
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{name}: {one.dtype}{list(one.shape)} -> {other.dtype}{list(other.shape)}"
    bits = [np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(value.size, -1) for value in (one, other)]
    place = int(np.flatnonzero((bits[0] != bits[1]).any(axis=1))[0])
    return f"{name}{list(map(int, np.unravel_index(place, one.shape)))}: {one.flat[place]!r} -> {other.flat[place]!r}"


def _digest(value: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(value.dtype), value.shape, value.tobytes()


def _names(gone: list[str], new: list[str]) -> str:
    return f"{len(gone)} names gone, {len(new)} new"
