"""Turn metric rows and comparisons into names and numbers for MLflow; undefined values are left out."""

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel

from grpo_pipeline.pipelines.experiments.trials.records import TrialRecord

# Nested, typed parameters -> the flat names and short texts that a tracker takes.

T = TypeVar("T")

MAX_VALUE_LENGTH = 500  # what every MLflow server since 1.0 takes; newer ones take more
MAX_NAME_LENGTH = 250


def to_plain(value: Any) -> Any:
    """Return parameters as dicts, lists and scalars that YAML and JSON know; models and dataclasses become dicts."""
    if isinstance(value, BaseModel):
        return to_plain(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        )
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            to_plain(item)
            for item in (value if isinstance(value, Sequence) else sorted(value, key=str))
        ]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def flatten(parameters: Mapping[str, Any], *, sep: str = ".") -> dict[str, str]:
    """Return one text per leaf, named by its path; a list is one JSON leaf, an empty section the leaf ``{}``."""
    return {
        sanitise(name)[:MAX_NAME_LENGTH]: text
        for name, text in _leaves(to_plain(parameters), prefix="", sep=sep)
    }


def _leaves(value: Any, *, prefix: str, sep: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _leaves(item, prefix=f"{prefix}{sep}{key}" if prefix else key, sep=sep)
    else:
        yield prefix, json.dumps(value) if isinstance(value, dict | list) else str(value)


def sanitise(name: str) -> str:
    """Replace what MLflow allows in no name; a leading or doubled slash, which it takes for a path, goes."""
    return re.sub(r"/{2,}", "/", re.sub(r"[^\w./\- ]", "_", name)).strip("/") or "_"


def shorten(value: str, *, limit: int = MAX_VALUE_LENGTH) -> str:
    """Return a value that fits; a cut one says so and how long it was."""
    if len(value) <= limit:
        return value
    note = f" … ({len(value)} characters; all of it in config/parameters.yml)"
    return value[: limit - len(note)] + note


def arm_parameters(
    parameters: Mapping[str, Any], *, task: str, arm: str, arms: Collection[str]
) -> dict[str, Any]:
    """Select what concerns one arm: settings of the whole run, the task's shared ones, and the arm's own.

    The arm's own section is renamed from ``<task>.<arm>`` to ``<task>.arm`` so that two arms differ in values, not in names,
    when they are compared. Sections of other tasks and other arms are left out.
    """
    plain = to_plain(parameters)
    shared = {name: value for name, value in plain.items() if not isinstance(value, dict)}
    section = plain.get(task, {})
    own = {
        ("arm" if name == arm else name): value
        for name, value in section.items()
        if name == arm or name not in arms
    }
    if isinstance(own.get("arms"), dict):
        own["arm"] = own.pop("arms").get(arm, {})
    return shared | {task: own}


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Split a sequence into lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


NOT_METRICS = ("step", "epoch", "split")


@dataclass(frozen=True, order=True)
class Point:
    """One value of one metric at one step."""

    name: str
    value: float
    step: int


def row_points(row: Mapping[str, Any]) -> list[Point]:
    """Return a training row's metrics: bare names for the split "train", ``<split>/<name>`` for any other."""
    split = row.get("split", "train")
    prefix = "" if split == "train" else f"{split}/"
    values = ((name, as_number(value)) for name, value in row.items() if name not in NOT_METRICS)
    return [
        Point(sanitise(name if name.startswith(prefix) else prefix + name), value, int(row["step"]))
        for name, value in values
        if value is not None
    ]


def as_number(value: Any) -> float | None:
    """Return a finite number, or None for what is none: text, None, NaN, infinity, a tensor of several values."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None


def arm_scores(comparison: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return arm -> ``test/<metric>`` and its interval's ends, by the name of the comparison's split."""
    prefix = str(comparison.get("split", "test"))
    return {
        arm: dict(_entries(scores["metrics"], prefix=prefix))
        for arm, scores in comparison["arms"].items()
    }


def shared_scores(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Return what belongs to no single arm: ``difference/…``, ``policy_gain/…`` and ``baseline/…``, each with its interval."""
    sections: list[tuple[str, Mapping[str, Any]]] = []
    for title, key in (("difference", "differences"), ("policy_gain", "policy_gain")):
        sections += [
            (f"{title}/{arm}", entries) for arm, entries in comparison.get(key, {}).items()
        ]
    sections += [
        (f"baseline/{name}", scores["metrics"])
        for name, scores in comparison.get("baselines", {}).items()
    ]
    return dict(pair for prefix, entries in sections for pair in _entries(entries, prefix=prefix))


def _entries(entries: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, float]]:
    for metric, entry in entries.items():
        low, high = entry.get("ci95") or (None, None)
        for suffix, value in (("", entry.get("value")), ("_ci_low", low), ("_ci_high", high)):
            if (number := as_number(value)) is not None:
                yield sanitise(f"{prefix}/{metric}{suffix}"), number


# Trials of a grid -> what MLflow takes: one child run per trial, written when the trial has ended.

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


def ended_run(record: TrialRecord, *, sep: str) -> EndedRun:
    """Return the child run of a trial: parameters under the names that an ordinary arm's run has."""
    header = record.header
    own = {
        ("arm.algorithm" if name == "algorithm" else name): section
        for name, section in header.parameters.items()
    }
    params = flatten({"seed": header.seed, header.task: own}, sep=sep)
    tags = {
        "task": header.task,
        "arm": header.arm,
        "seed": str(header.seed),
        "trial.digest": header.digest,
    }
    tags |= {} if header.fold is None else {"fold": header.fold}
    tags |= {} if header.reason is None else {"error.message": header.reason}
    scores = {sanitise(f"test/{name}"): float(value) for name, value in header.metrics.items()} | {
        "trial/seconds": header.seconds
    }
    return EndedRun(
        header.key,
        STATUS[header.status],
        header.seconds,
        tags,
        params,
        tuple(record.metric_rows),
        scores,
    )


def grid_scores(document: Mapping[str, Any]) -> dict[str, float]:
    """Return ``mean/<arm>/<metric>`` and ``difference/<arm>/<metric>`` with their intervals, and the corrected p-values."""
    sections = {f"mean/{arm}": found["metrics"] for arm, found in document["arms"].items()}
    sections |= {f"difference/{arm}": entries for arm, entries in document["differences"].items()}
    pairs: dict[str, float | None] = {}
    for prefix, entries in sections.items():
        for metric, entry in entries.items():
            low, high = entry.get("ci95") or (None, None)
            values = {
                "": entry["value"],
                "_ci_low": low,
                "_ci_high": high,
                "_p_holm": entry.get("p_holm"),
            }
            pairs |= {
                sanitise(f"{prefix}/{metric}{suffix}"): as_number(value)
                for suffix, value in values.items()
            }
    return {name: value for name, value in pairs.items() if value is not None}


def fold_scores(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the headline values of a cross-validation under the names of ``grid_scores``."""
    kind = document["headline"]
    arms = {
        arm: {"metrics": {name: kinds[kind] for name, kinds in found["metrics"].items()}}
        for arm, found in document["arms"].items()
    }
    differences = {
        arm: {name: kinds[kind] for name, kinds in found.items()}
        for arm, found in document["differences"].items()
    }
    return grid_scores({"arms": arms, "differences": differences})
