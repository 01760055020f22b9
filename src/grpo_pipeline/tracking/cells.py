"""Cells of a grid -> what MLflow takes: one child run per cell, written when the cell has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.pipelines.compare.cells import CellRecord
from grpo_pipeline.tracking.flatten import flatten, sanitise
from grpo_pipeline.tracking.metrics import as_number

STATUS = {"finished": "FINISHED", "failed": "FAILED"}


@dataclass(frozen=True)
class EndedRun:
    """A run that is over when it is first heard of.

    Attributes:
        name: of the run.
        status: MLflow's word for how it ended.
        seconds: how long it took.
        tags: name -> text.
        params: flat parameters.
        rows: metric rows by step.
        scores: single values.
    """

    name: str
    status: str
    seconds: float
    tags: Mapping[str, str]
    params: Mapping[str, str]
    rows: tuple[Mapping[str, Any], ...]
    scores: Mapping[str, float]


def ended_run(record: CellRecord, *, sep: str) -> EndedRun:
    """Return the child run of a cell: parameters under the names that an ordinary arm's run has."""
    header = record.header
    own = {("arm.algorithm" if name == "algorithm" else name): section for name, section in header.parameters.items()}
    params = flatten({"seed": header.seed, header.task: own}, sep=sep)
    tags = {"task": header.task, "arm": header.arm, "seed": str(header.seed), "cell.digest": header.digest}
    tags |= {} if header.fold is None else {"fold": header.fold}
    tags |= {} if header.reason is None else {"error.message": header.reason}
    scores = {sanitise(f"test/{name}"): float(value) for name, value in header.metrics.items()} | {"cell/seconds": header.seconds}
    return EndedRun(header.key, STATUS[header.status], header.seconds, tags, params, tuple(record.metric_rows), scores)


def grid_scores(document: Mapping[str, Any]) -> dict[str, float]:
    """Return ``mean/<arm>/<metric>`` and ``difference/<arm>/<metric>`` with their intervals, and the corrected p-values."""
    sections = {f"mean/{arm}": found["metrics"] for arm, found in document["arms"].items()}
    sections |= {f"difference/{arm}": entries for arm, entries in document["differences"].items()}
    pairs: dict[str, float | None] = {}
    for prefix, entries in sections.items():
        for metric, entry in entries.items():
            low, high = entry.get("ci95") or (None, None)
            values = {"": entry["value"], "_ci_low": low, "_ci_high": high, "_p_holm": entry.get("p_holm")}
            pairs |= {sanitise(f"{prefix}/{metric}{suffix}"): as_number(value) for suffix, value in values.items()}
    return {name: value for name, value in pairs.items() if value is not None}


def fold_scores(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the headline values of a cross-validation under the names of ``grid_scores``."""
    kind = document["headline"]
    arms = {
        arm: {"metrics": {name: kinds[kind] for name, kinds in found["metrics"].items()}}
        for arm, found in document["arms"].items()
    }
    differences = {arm: {name: kinds[kind] for name, kinds in found.items()} for arm, found in document["differences"].items()}
    return grid_scores({"arms": arms, "differences": differences})
