"""Write single entries to an MLflow store; the writer's thread calls these functions."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from grpo_pipeline.runs.process import is_gone
from grpo_pipeline.tracking.metrics import batches, row_points, shorten

MAX_METRICS_PER_CALL = 1000
MAX_PER_CALL = 100
MAX_TAG_LENGTH = 5000
# Of all 4xx those that speak of the client and not of the entry: no rights (any more), too many requests.
NOT_OF_THE_ENTRY = (401, 403, 429)


class NotOpenedError(RuntimeError):
    """The store could not be opened, for whatever reason: nothing can be written."""


def is_refusal(error: BaseException) -> bool:
    """Return whether an entry was refused (a 4xx, or a value that cannot be sent), as opposed to a store that does not answer."""
    if not isinstance(error, MlflowException):
        return isinstance(error, LookupError | TypeError | ValueError | AttributeError)
    code = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    return 400 <= code < 500 and code not in NOT_OF_THE_ENTRY


# The tags that people look at. MLflow's pages show no name that begins with "mlflow.": so the others are out of sight.
VISIBLE = {"task", "arm", "seed", "env", "fold", "verdict", "ended", "error.type", "error.message"}
HIDDEN = "mlflow.grpo."


def tag_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags under the names that a store has: those that only programs and searches read are hidden."""
    return {
        name if name in VISIBLE or name.startswith("mlflow.") else HIDDEN + name: value
        for name, value in tags.items()
    }


# The page of a new experiment opens on trained models; without a kind it asks what this is about.
KIND = {"mlflow.experimentKind": "custom_model_development"}


def find_experiment(client: MlflowClient, name: str, *, artifacts: str | None) -> str:
    """Return the id of an experiment; one that does not exist is created, a deleted one restored."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts, tags=KIND))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another run may have been faster
            if found is None:
                raise
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def reopen_run(client: MlflowClient, run: str) -> Run | None:
    """Set an ended run back to RUNNING and return what it was before; None where it does not exist any more."""
    try:
        before = client.get_run(run)
        client.update_run(run, status="RUNNING")
    except MlflowException as error:
        if is_refusal(error):
            return None
        raise
    return before


def end_stale_runs(
    client: MlflowClient, experiment_id: str, *, project: str, is_local_store: bool
) -> None:
    """Mark the runs of a project that a kill or a power cut left RUNNING as KILLED."""
    for run in client.search_runs(
        [experiment_id], "attributes.status = 'RUNNING'", max_results=200
    ):
        tags = {name.removeprefix(HIDDEN): value for name, value in run.data.tags.items()}
        is_ours = tags.get("project.path") == project and tags.get("process.pid", "").isdigit()
        if is_ours and is_gone(tags, is_local_store=is_local_store):
            client.set_tag(run.info.run_id, "ended", "its process was found dead by a later run")
            client.set_terminated(run.info.run_id, "KILLED")


def log_params(
    client: MlflowClient, run: str, params: Mapping[str, str], *, tag_long: bool
) -> None:
    """Log the parameters that a run does not hold yet: MLflow lets none be changed, and a resumed run holds its own."""
    known = client.get_run(run).data.params
    new = {name: value for name, value in params.items() if name not in known}
    for batch in batches(
        [Param(name, shorten(value)) for name, value in new.items()], MAX_PER_CALL
    ):
        client.log_batch(run, params=batch)
    if tag_long:
        log_tags(
            client, run, {name: value for name, value in new.items() if shorten(value) != value}
        )


def log_tags(client: MlflowClient, run: str, tags: Mapping[str, str]) -> None:
    """Set tags, in as few calls as MLflow's limit allows."""
    for batch in batches(
        [RunTag(name, value[:MAX_TAG_LENGTH]) for name, value in tag_names(tags).items()],
        MAX_PER_CALL,
    ):
        client.log_batch(run, tags=batch)


def log_metrics(client: MlflowClient, run: str, metrics: Sequence[Metric]) -> None:
    """Log points of metrics, in as few calls as MLflow's limit allows."""
    for batch in batches(metrics, MAX_METRICS_PER_CALL):
        client.log_batch(run, metrics=batch)


def logged_values(client: MlflowClient, run: str, name: str) -> dict[int, float]:
    """Return step -> value of a metric that a run holds, of the last one where a step has several."""
    history: Sequence[Any] = client.get_metric_history(run, name)
    return {metric.step: metric.value for metric in history}


# Training rows on their way to MLflow: collected, then written together.


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
        """Keep rows until the next flush."""
        self._rows.setdefault(run, []).extend(rows)

    def mark_continued(self, run: str) -> None:
        """Note that a run was resumed: what it is given again at a step at which it holds the metric is not written twice.

        Each metric counts for itself: rows of several kinds share steps, and a kill may have come between two of them.
        """
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

    def _metrics(
        self, client: MlflowClient, run: str, row: Mapping[str, Any], *, now: int
    ) -> list[Metric]:
        points = [Metric(point.name, point.value, now, point.step) for point in row_points(row)]
        return self.news(client, run, points)

    def news(
        self, client: MlflowClient, run: str, metrics: Sequence[Metric], *, replace: bool = False
    ) -> list[Metric]:
        """Return the metrics that a run does not hold yet at their step; with ``replace``, those of another value as well."""
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


# The one thread that talks to MLflow, so that training never waits for it.
#
# Work is done in the order in which it was posted. The first time the store does not answer, tracking ends for this run: what is
# still queued is dropped, the loss is announced once, and nothing is raised. What the store refuses (a name, a deleted run) is
# announced and skipped.

T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
MAX_REFUSALS_SHOWN = 3
SAY_AFTER_SECONDS = 15.0
HURRY_SECONDS = 5.0
# A request has limits of its own (runs.mlflow_defaults.MLFLOW_DEFAULTS), and an entry is a few requests.
ENTRY_SECONDS = 600.0


class UnsentError(RuntimeError):
    """The store works, and not all was sent to it."""


@dataclass(frozen=True)
class Entry:
    """Work that waits for the thread.

    Attributes:
        work: what to do.
        future: of its result.
        is_last: whether it says how the run ended, which is sent even when the rest is left.
    """

    work: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)
    is_last: bool = False


class Writer:
    """Runs posted work in a daemon thread.

    Attributes:
        lost: why the store was given up, or None.
    """

    def __init__(
        self,
        *,
        on_lost: Callable[[BaseException], None],
        flush: Callable[[], None],
        is_refusal: Callable[[Any], bool],
    ):
        """Start the thread.

        Args:
            on_lost: announces that the store was given up; called once.
            flush: called about every two seconds, and before the end, in the thread.
            is_refusal: whether an error means "refused", not "gone".
        """
        self.lost: BaseException | None = None
        self._on_lost, self._flush, self._is_refusal = on_lost, flush, is_refusal
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._refusals, self._lock = 0, threading.Lock()
        self._done, self._left, self._hurries = 0, 0, False
        self._ended = (
            threading.Event()
        )  # a thread says of itself that it has ended after an interrupted join
        self._thread = threading.Thread(target=self._serve, name="mlflow-writer", daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], T], *, is_last: bool = False) -> "Future[T | None]":
        """Queue work and return at once; the future holds None where it was not done."""
        entry = Entry(work, is_last=is_last)
        self._queue.put(entry)
        return entry.future

    def close(self, *, timeout: float | None) -> bool:
        """Finish what is queued; return whether all of it was written.

        Without a limit that takes as long as the store goes on taking entries. With one, and after Ctrl-C, what is still queued
        is left after a while, except how the run ended.
        """
        self.post(self._flush)
        self._queue.put(None)
        try:
            if timeout is None:
                self._wait_while_it_moves()
            else:
                self._ended.wait(timeout / 2)
                self._hurry(timeout / 2, why=f"not all was written within {timeout:.0f} s")
        except KeyboardInterrupt:
            self._hurry(HURRY_SECONDS, why="not all was written before Ctrl-C")
        return self.lost is None

    def _wait_while_it_moves(self) -> None:
        self._ended.wait(SAY_AFTER_SECONDS)
        if not self._ended.is_set():
            logger.info(
                "MLflow is slow: the run is done, and %d entries are still to be sent; Ctrl-C leaves them",
                self._queue.qsize(),
            )
        while not self._ended.is_set():
            before = self._done
            self._ended.wait(ENTRY_SECONDS)
            if not self._ended.is_set() and self._done == before:
                self._give_up(UnsentError(f"no entry was taken within {ENTRY_SECONDS:.0f} s"))
                return

    def _hurry(self, seconds: float, *, why: str) -> None:
        """Leave what is queued, except how the run ended."""
        self._hurries = True
        with suppress(KeyboardInterrupt):
            self._ended.wait(seconds)
        if not self._ended.is_set() or self._left:
            self._give_up(UnsentError(why))

    def _serve(self) -> None:
        due = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                entry = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                entry = Entry(self._flush)
            if entry is None:
                self._ended.set()
                return
            self._do(entry)
            if time.monotonic() >= due:
                self._do(Entry(self._flush))
                due = time.monotonic() + FLUSH_SECONDS

    def _do(self, entry: Entry) -> None:
        result = None
        if self._hurries and not entry.is_last:
            self._left += 1
        elif self.lost is None:
            try:
                result = entry.work()
            except Exception as error:  # noqa: BLE001 - whatever the tracker raises, training goes on
                self._handle(error)
        self._done += 1
        entry.future.set_result(result)

    def _handle(self, error: Exception) -> None:
        if not self._is_refusal(error):
            self._give_up(error)
        elif (count := self._refusals) < MAX_REFUSALS_SHOWN:
            self._refusals = count + 1
            logger.warning(
                "MLflow refused one entry, which is skipped: %s",
                str(error).partition("\n")[0][:300],
            )

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            is_news, self.lost = self.lost is None, self.lost or error
        if is_news:
            self._on_lost(error)
