"""Turn parameters, metric rows and comparisons into the few names and numbers that MLflow shows, and tables of the others."""

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, TypeVar

import pandas as pd
from pydantic import BaseModel

from grpo_pipeline.pipelines.experiments.trials.records import TrialRecord
from grpo_pipeline.pipelines.training.best import KEPT

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


def is_within(name: str, paths: Iterable[str]) -> bool:
    """Return whether a flat name is one of the paths, or lies below one."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def run_parameters(
    flat: Mapping[str, str], defaults: Mapping[str, str], *, read: Collection[str]
) -> dict[str, str]:
    """Select the parameters that a run's nodes read and whose values are not the defaults."""
    return {
        name: value
        for name, value in flat.items()
        if is_within(name, read) and defaults.get(name) != value
    }


def arm_parameters(
    flat: Mapping[str, str],
    changed: Mapping[str, str],
    *,
    task: str,
    arm: str,
    arms: Collection[str],
) -> dict[str, str]:
    """Select what tells one arm from others: changed settings, and of its own those that another arm does not have so.

    The arm's own section is renamed from ``<task>.<arm>`` to ``<task>.arm`` so that two arms differ in values, not in names,
    when they are compared. Other tasks and the sections of other arms are left out.

    Args:
        flat: all parameters, by ``flatten`` with dots.
        changed: those of the run, by ``run_parameters``.
        task: the task's name.
        arm: the arm's name.
        arms: all arms of the run.
    """
    own = {
        name: {
            path.removeprefix(f"{task}.{name}."): value
            for path, value in flat.items()
            if path.startswith(f"{task}.{name}.")
        }
        for name in {arm, *arms}
    }
    sections = [f"{task}.{name}" for name in own]
    shared = {
        name: value
        for name, value in changed.items()
        if not is_within(name, sections) and ("." not in name or is_within(name, [task]))
    }
    told = {
        f"{task}.arm.{path}": value
        for path, value in own[arm].items()
        if f"{task}.{arm}.{path}" in changed or any(o.get(path) != value for o in own.values())
    }
    return shared | told


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


def chosen_metrics(row: Mapping[str, Any], patterns: Collection[str]) -> dict[str, Any]:
    """Return a training row with the metrics whose names in MLflow fit one of the shell patterns.

    What says only that weights were kept (``training.best``) repeats another metric, and is left out.
    """
    prefix = "" if (split := row.get("split", "train")) == "train" else f"{split}/"
    return {
        name: value
        for name, value in row.items()
        if name in NOT_METRICS
        or (
            not name.startswith(tuple(KEPT.values()))
            and any(
                fnmatchcase(name if name.startswith(prefix) else prefix + name, p) for p in patterns
            )
        )
    }


def as_number(value: Any) -> float | None:
    """Return a finite number, or None for what is none: text, None, NaN, infinity, a tensor of several values."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) and not isinstance(value, str) else None


# What people look at: a run has so many metrics that are compared, and everything else is in a table.

MOST_SHOWN = 9
INTERVAL = ("ci_low", "ci_high")


def shown_metrics(comparison: Mapping[str, Any], *, tasks: int = 1) -> list[str]:
    """Return the metrics of a comparison that become MLflow's: the first of its short table; fewer of each of several tasks."""
    names = dict.fromkeys(n for one in comparison["arms"].values() for n in one["metrics"])
    short = [name for name in comparison.get("headline", ()) if name in names] or [*names]
    return short[: max(1, MOST_SHOWN // tasks)]


def arm_scores(comparison: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return arm -> ``test/<metric>``, by the name of the comparison's split."""
    prefix = f"{comparison.get('split', 'test')}/"
    return {
        arm: dict(_values(scores["metrics"], names, prefix=prefix))
        for arm, scores in comparison["arms"].items()
    }


def parent_scores(
    comparison: Mapping[str, Any], names: Sequence[str], *, prefix: str = ""
) -> dict[str, float]:
    """Return of the arm that is spoken of ``test/<metric>``, and ``difference/<metric>`` to the control.

    ``prefix`` stands before a metric's name, where several tasks share a run.
    """
    arm = str(comparison.get("baseline_arm", comparison.get("control", "")))
    scores = comparison["arms"].get(arm, {"metrics": {}})["metrics"]
    gaps = comparison.get("differences", {}).get(arm, {})
    own = _values(scores, names, prefix=f"{comparison.get('split', 'test')}/{prefix}")
    return dict([*own, *_values(gaps, names, prefix=f"difference/{prefix}")])


def _values(
    entries: Mapping[str, Any], names: Iterable[str], *, prefix: str
) -> Iterator[tuple[str, float]]:
    for metric in names:
        if (number := as_number(entries.get(metric, {}).get("value"))) is not None:
            yield sanitise(prefix + metric), number


def comparison_table(comparison: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate every figure of a comparison: ``what``, ``of``, ``metric``, ``value`` and the ends of its interval."""
    rows = [
        *_rows("arm", comparison["arms"], key="metrics"),
        *_rows("difference to the control", comparison.get("differences", {})),
        *_rows("gain over the start", comparison.get("policy_gain", {})),
        *_rows("other rule", comparison.get("baselines", {}), key="metrics"),
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "value", *INTERVAL, "reason"])


COLUMNS = ("what", "of", "metric")


def _rows(
    what: str, sections: Mapping[str, Any], *, key: str = "", more: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    for of, section in sections.items():
        for metric, entry in (section[key] if key else section).items():
            low, high = entry.get("ci95") or (None, None)
            yield {
                **dict(zip(COLUMNS, (what, of, metric), strict=True)),
                "value": entry.get("value"),
                **dict(zip(INTERVAL, (low, high), strict=True)),
                **{name: entry.get(name) for name in more},
                "reason": entry.get("reason"),
            }


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


def ended_run(
    record: TrialRecord,
    *,
    defaults: Mapping[str, str],
    env: str,
    headline: Sequence[str],
    patterns: Collection[str],
) -> EndedRun:
    """Return the child run of a trial: parameters and metrics under the names that an ordinary arm's run has.

    Args:
        record: of the trial.
        defaults: flat sections of conf/base, under the names of the trial's own; what is as there is left out.
        env: Kedro environment.
        headline: metrics of the task's short table, the first of which names the run.
        patterns: of the training rows' metrics that are shown.
    """
    header = record.header
    task = header.task
    params = {}
    for path, value in flatten(header.parameters).items():
        if value != defaults.get(path):
            params[f"{task}.arm.{path}" if is_within(path, ["algorithm"]) else f"{task}.{path}"] = (
                value
            )
    tags = {"task": task, "arm": header.arm, "seed": str(header.seed), "env": env}
    tags |= {"trial.digest": header.digest}
    tags |= {} if header.fold is None else {"fold": header.fold}
    tags |= {} if header.reason is None else {"error.message": header.reason}
    names = [name for name in headline if name in header.metrics] or [*header.metrics]
    values = {name: float(header.metrics[name]) for name in names[:MOST_SHOWN]}
    name = header.key + "".join(f" · {n} {value:.2f}" for n, value in [*values.items()][:1])
    fold = "" if header.fold is None else f", fold {header.fold}"
    said = header.reason or ", ".join(f"{n} {value:.3f}" for n, value in values.items())
    tags["mlflow.note.content"] = f"**{header.arm}**, seed {header.seed}{fold}: {said}"
    return EndedRun(
        name,
        STATUS[header.status],
        header.seconds,
        tags,
        params,
        tuple(chosen_metrics(row, patterns) for row in record.metric_rows),
        {sanitise(f"test/{name}"): value for name, value in values.items()},
    )


def grid_scores(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return ``mean/<arm>/<metric>`` and ``difference/<arm>/<metric>`` of these metrics, as many as a run shows."""
    sections = {f"mean/{arm}/": found["metrics"] for arm, found in document["arms"].items()}
    sections |= {f"difference/{arm}/": entries for arm, entries in document["differences"].items()}
    pairs = (
        pair
        for name in names
        for prefix, entries in sections.items()
        for pair in _values(entries, [name], prefix=prefix)
    )
    return dict(islice(pairs, 2 * MOST_SHOWN))


def grid_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate every figure of a comparison of trials, with the p-values that are corrected for their number."""
    more = ("p_holm",)
    rows = [
        *_rows("mean over trials", document["arms"], key="metrics", more=more),
        *_rows("difference to the control", document["differences"], more=more),
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "value", *INTERVAL, *more, "reason"])


def headline_of_folds(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cross-validation's document as one of trials: of each metric the kind of value that its headline is."""
    kind = document["headline"]
    arms = {
        arm: {"metrics": {name: kinds[kind] for name, kinds in found["metrics"].items()}}
        for arm, found in document["arms"].items()
    }
    differences = {
        arm: {name: kinds[kind] for name, kinds in found.items()}
        for arm, found in document["differences"].items()
    }
    return {**document, "arms": arms, "differences": differences}
