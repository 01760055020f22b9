"""Convert the trials of a grid to MLflow: a child run per trial, written when the trial has ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.experiments.trials.records import TrialRecord
from grpo_pipeline.tracking.comparison_scores import (
    COLUMNS,
    INTERVAL,
    MOST_SHOWN,
    metric_values,
    table_rows,
)
from grpo_pipeline.tracking.flat_parameters import flatten, sanitise
from grpo_pipeline.tracking.logged_parameters import is_within
from grpo_pipeline.tracking.metric_points import chosen_metrics

STATUS = {"finished": "FINISHED", "failed": "FAILED"}


@dataclass(frozen=True)
class EndedRun:
    """A run that is logged only after its end.

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
    """Convert a trial to a child run: parameters and metrics with the names of an ordinary arm's run.

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
    """Collect ``mean/<arm>/<metric>`` and ``difference/<arm>/<metric>`` of these metrics, as many as a run shows."""
    sections = {f"mean/{arm}/": found["metrics"] for arm, found in document["arms"].items()}
    sections |= {f"difference/{arm}/": entries for arm, entries in document["differences"].items()}
    pairs = (
        pair
        for name in names
        for prefix, entries in sections.items()
        for pair in metric_values(entries, [name], prefix=prefix)
    )
    return dict(islice(pairs, 2 * MOST_SHOWN))


def grid_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate every figure of a comparison of trials, with the p-values that are corrected for their number."""
    more = ("p_holm",)
    rows = [
        *table_rows("mean over trials", document["arms"], key="metrics", more=more),
        *table_rows("difference to the control", document["differences"], more=more),
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "value", *INTERVAL, *more, "reason"])


def headline_of_folds(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a cross-validation's document to that of a comparison, with the headline's kind of value for each metric."""
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
