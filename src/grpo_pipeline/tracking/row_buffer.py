"""Collect training rows on their way to MLflow, and write them together."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from grpo_pipeline.tracking.experiment import MAX_METRICS_PER_CALL, log_metrics, logged_values
from grpo_pipeline.tracking.metric_points import row_points


class RowBuffer:
    """Rows by run; used by the writer's thread only, except ``stamp``."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        self._continued: set[str] = set()
        self._held: dict[tuple[str, str], dict[int, float]] = {}

    @staticmethod
    def stamp(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
        """Copy rows together with the time, in milliseconds."""
        now = int(time.time() * 1000)
        return [(now, dict(row)) for row in rows]

    def add(self, run: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Buffer rows until the next flush."""
        self._rows.setdefault(run, []).extend(rows)

    def mark_continued(self, run: str) -> None:
        """Mark a run as resumed, so that a metric that it holds at a step is not written again.

        Each metric is checked separately: rows of several kinds share steps, and a kill may have come between two of them.
        """
        self._continued.add(run)

    def flush(self, client: MlflowClient) -> None:
        """Write the buffered rows: whole rows, in order, in as few calls as MLflow's limit allows."""
        waiting, self._rows = self._rows, {}
        for run, rows in waiting.items():
            batch: list[Metric] = []
            for now, row in rows:
                metrics = self._metrics(client, run, row, now=now)
                if len(batch) + len(metrics) > MAX_METRICS_PER_CALL:
                    log_metrics(client, run, batch)
                    batch = []
                batch += metrics
            log_metrics(client, run, batch)

    def _metrics(
        self, client: MlflowClient, run: str, row: Mapping[str, Any], *, now: int
    ) -> list[Metric]:
        points = [Metric(point.name, point.value, now, point.step) for point in row_points(row)]
        return self.news(client, run, points)

    def news(
        self, client: MlflowClient, run: str, metrics: Sequence[Metric], *, replace: bool = False
    ) -> list[Metric]:
        """Select the metrics that a run does not hold yet at their step; with ``replace``, also those with another value."""
        if run not in self._continued:
            return list(metrics)
        found = []
        for metric in metrics:
            key = run, metric.key
            if key not in self._held:
                self._held[key] = logged_values(client, run, metric.key)
            held = self._held[key]
            if metric.step not in held or (replace and held[metric.step] != metric.value):
                held[metric.step] = metric.value
                found.append(metric)
        return found
