"""Training rows on their way to MLflow: collected, then written together."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from grpo_pipeline.tracking.experiment import MAX_METRICS_PER_CALL, last_logged_step, log_metrics
from grpo_pipeline.tracking.metrics import row_points


class RowBuffer:
    """Rows by run; used by the writer's thread only, except ``stamp``."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        self._continued: set[str] = set()
        self._logged: dict[tuple[str, str], int] = {}

    @staticmethod
    def stamp(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
        """Copy rows together with the time, in milliseconds."""
        now = int(time.time() * 1000)
        return [(now, dict(row)) for row in rows]

    def add(self, run: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Keep rows until the next flush."""
        self._rows.setdefault(run, []).extend(rows)

    def mark_continued(self, run: str) -> None:
        """Note that a run was resumed: of the rows that it is given again, those that it holds are not written twice."""
        self._continued.add(run)

    def flush(self, client: MlflowClient) -> None:
        """Write what was collected: whole rows, in order, in as few calls as MLflow's limit allows."""
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

    def _metrics(self, client: MlflowClient, run: str, row: Mapping[str, Any], *, now: int) -> list[Metric]:
        points = row_points(row)
        if run in self._continued and points:
            key = run, str(row.get("split"))
            if key not in self._logged:
                self._logged[key] = last_logged_step(client, run, points[0].name)
            points = [point for point in points if point.step > self._logged[key]]
        return [Metric(point.name, point.value, now, point.step) for point in points]
