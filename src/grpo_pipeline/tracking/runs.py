"""Manage the MLflow runs of a command by explicit ids: a parent, and a child per arm.

Every method returns at once and leaves the work to the writer, except ``child_id``, which waits a while. Methods take a run by
name: ``PARENT`` is the parent, any other name that of a child. Ids are known when the store has answered.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric
from mlflow.tracking import MlflowClient

from grpo_pipeline.runs.process import process_tags
from grpo_pipeline.runs.run_identity import run_identity
from grpo_pipeline.tracking.addresses import is_server
from grpo_pipeline.tracking.database import create_database
from grpo_pipeline.tracking.experiment import (
    NotOpenedError,
    end_stale_runs,
    find_experiment,
    is_refusal,
    log_metrics,
    log_params,
    log_tags,
    reopen_run,
    tag_names,
)
from grpo_pipeline.tracking.metric_points import row_points
from grpo_pipeline.tracking.registry import register, set_champion
from grpo_pipeline.tracking.row_buffer import RowBuffer
from grpo_pipeline.tracking.served import KeptModel, registered_name, save_served
from grpo_pipeline.tracking.store import root_cause
from grpo_pipeline.tracking.trial_runs import EndedRun
from grpo_pipeline.tracking.writer import Writer

logger = logging.getLogger(__name__)

PARENT = ""
# How long the first checkpoint of an arm waits for the id of its run: a new local database takes a while to create, and a slow
# server does not hold up training.
ID_SECONDS = {"server": 10.0, "database": 60.0}
MAX_DIGEST_LENGTH = 36  # of MLflow's own table; the tag holds all of it
MAX_TABLE_ROWS = 500
SAMPLE_SECONDS = 10.0  # between two looks at the machine
PARENT_TAG = "mlflow.parentRunId"
SAMPLES = "validation samples"
LOGGED_ARTIFACTS = (
    "mlflow.loggedArtifacts"  # by this tag MLflow's pages know which files are tables
)


class Runs:
    """The runs of a command.

    Attributes:
        uri: address of the store.
        experiment: name of the experiment.
        parent: id of the parent run; empty until it is known.
        children: child's name -> run id; empty until it is known.
    """

    def __init__(
        self, uri: str, *, experiment: str, project: Path, on_lost: Callable[[BaseException], None]
    ) -> None:
        """Start the writer; the store is not contacted yet.

        Args:
            uri: address of the store.
            experiment: name of the experiment.
            project: folder of the project, which distinguishes its runs from those of others.
            on_lost: called when the store no longer answers.
        """
        self.uri, self.experiment, self.parent = uri, experiment, ""
        self.children: dict[str, str] = {}
        self._experiment_id, self._tags = "", {"project.path": str(project), **process_tags()}
        self._rows, self._keeps_files = RowBuffer(), True
        self._tables: dict[str, set[str]] = {}
        self._models: dict[str, str] = {}  # name -> id, of those that are announced
        self._data: dict[str, dict[str, str]] = {}
        self._ends: dict[str, int | None] = {}
        self._sampled, self._samples = time.monotonic(), 0
        psutil.cpu_percent()  # each call says how busy the processors were since the one before
        self._opening: dict[str, Future[Any]] = {}
        self._client: MlflowClient | None = None
        self._writer = Writer(on_lost=on_lost, flush=self._flush, is_refusal=is_refusal)

    @property
    def is_lost(self) -> bool:
        """Check whether the store was given up."""
        return self._writer.lost is not None

    def open(self, name: str, *, tags: Mapping[str, str], artifacts: str | None) -> None:
        """Connect, find or create the experiment, open the parent run, and end the runs of killed processes."""
        self._tags["run.identity"] = run_identity()
        project, is_local = self._tags["project.path"], not is_server(self.uri)
        begun = int(time.time() * 1000)

        def work() -> None:
            try:
                create_database(self.uri)
                self._client = MlflowClient(self.uri)
                self._experiment_id = find_experiment(
                    self._live, self.experiment, artifacts=artifacts
                )
                self.parent = self._create(name, tags, begun)
            except Exception as error:
                raise NotOpenedError(str(error)) from error

        self._writer.post(work)
        self._writer.post(
            lambda: end_stale_runs(
                self._live, self._experiment_id, project=project, is_local_store=is_local
            )
        )

    def open_child(self, name: str, *, tags: Mapping[str, str], resumed: str | None) -> None:
        """Open a child run, or reopen the run with the id ``resumed``."""
        begun = int(time.time() * 1000)  # it is opened when those before it are

        def work() -> None:
            own = {**tags, PARENT_TAG: self.parent}
            if resumed and (before := reopen_run(self._live, resumed)):
                self._ends[resumed] = before.info.end_time
                self._rows.mark_continued(resumed)
                log_tags(self._live, resumed, {**self._tags, **own})
                self.children[name] = resumed
            else:
                own |= {"resumed.from": resumed} if resumed else {}
                self.children[name] = self._create(name, own, begun)

        self.children[name] = ""
        self._opening[name] = self._writer.post(work)

    def child_id(self, name: str) -> str:
        """Find the id of a child run; waits for it once, and returns "" if the store has not answered by then."""
        if opening := self._opening.pop(name, None):
            kind = "server" if is_server(self.uri) else "database"
            with suppress(TimeoutError):
                opening.result(ID_SECONDS[kind])
        return self.children.get(name, "")

    def log_ended(self, ended: EndedRun) -> None:
        """Write a finished child run as a whole."""
        end = int(time.time() * 1000)

        def work() -> None:
            tags = {**self._tags, **ended.tags, PARENT_TAG: self.parent}
            start = end - int(ended.seconds * 1000)
            created = self._live.create_run(
                self._experiment_id, start_time=start, tags=tag_names(tags), run_name=ended.name
            )
            run = str(created.info.run_id)
            log_params(self._live, run, ended.params, tag_long=False)
            points = [
                Metric(point.name, point.value, end, point.step)
                for row in ended.rows
                for point in row_points(row)
            ]
            log_metrics(
                self._live,
                run,
                points + [Metric(name, value, end, 0) for name, value in ended.scores.items()],
            )
            self._live.set_terminated(run, ended.status)

        self._writer.post(work)

    def log_params(self, run: str, params: Mapping[str, str], *, tag_long: bool) -> None:
        """Log flat parameters; long values are cut, and kept as a tag too if ``tag_long``."""
        self._writer.post(lambda: log_params(self._live, self._id(run), params, tag_long=tag_long))

    def log_rows(self, run: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log training rows of a child; they are written together every two seconds."""
        stamped = RowBuffer.stamp(rows)
        self._writer.post(lambda: self._rows.add(self._id(run), stamped))

    def log_scores(
        self, run: str, scores: Mapping[str, float], *, model: str = "", step: int = 0
    ) -> None:
        """Log single values; a resumed run gets a value again only if it differs from the value that it holds.

        With the name of a model of ``open_model``, the values belong to this model, too, on the data that the run has read.
        """
        now = int(time.time() * 1000)

        def work() -> None:
            own = {"model_id": self._models.get(model), **self._data.get(run, {})} if model else {}
            metrics = [Metric(name, value, now, step, **own) for name, value in scores.items()]
            log_metrics(
                self._live,
                self._id(run),
                self._rows.news(self._live, self._id(run), metrics, replace=True),
            )

        self._writer.post(work)

    def log_file(self, run: str, path: Path) -> None:
        """Log a file or a folder."""
        self._post_file(lambda: self._live.log_artifact(self._id(run), str(path)))

    def open_model(self, run: str, kept: KeptModel, tags: Mapping[str, str]) -> None:
        """Announce a model of a run: its scores can be logged, its files come with ``close_model``."""

        def work() -> None:
            made = self._live.create_logged_model(
                self._experiment_id, kept.name, self._id(run), tags=dict(tags), model_type="policy"
            )
            self._models[kept.name] = made.model_id
            output = LoggedModelOutput(made.model_id, kept.step)
            for owner in (run, PARENT):  # the list of runs shows what the parent has
                self._live.log_outputs(self._id(owner), [output])

        self._writer.post(work)

    def close_model(self, run: str, kept: KeptModel, tags: Mapping[str, str]) -> None:
        """Log a model in the form that MLflow can load and serve, and register it."""

        def work() -> None:
            model = self._models.pop(kept.name, "")
            with TemporaryDirectory(prefix="grpo-served-") as folder:
                packed = Path(folder) / kept.name
                try:
                    save_served(kept.path, packed, model_id=model or None)
                except Exception as error:  # noqa: BLE001 - the run has its weights, whatever MLflow says of the folder
                    logger.warning(
                        "MLflow cannot pack %s for serving (%s); its weights are logged",
                        kept.path,
                        root_cause(error),
                    )
                    self._live.log_artifact(self._id(run), str(kept.path))
                    return
                if not model:  # a server of before MLflow 3
                    self._live.log_artifacts(self._id(run), str(packed), kept.name)
                    return
                self._live.log_model_artifacts(model, str(packed))
            self._live.finalize_logged_model(model, "READY")
            ready.append(model)

        def registering() -> None:
            name = registered_name(self.experiment, kept.task)
            for model in ready:
                register(self._live, name, kept, model=model, run=self._id(run), tags=tags)

        ready: list[str] = []
        self._post_file(work)
        self._writer.post(registering)

    def set_champion(self, task: str, *, metric: str, data: str) -> None:
        """Choose the champion among a task's registered models, by the validation split."""
        name = registered_name(self.experiment, task)
        self._writer.post(lambda: set_champion(self._live, name, metric=metric, data=data))

    def log_pictures(self, run: str, draw: Callable[[], Mapping[int, Any]]) -> None:
        """Log a picture for each step that ``draw`` returns, uint8 [H, W, 3]; MLflow shows them with a slider."""

        def work() -> None:
            for step, picture in draw().items():
                self._live.log_image(self._id(run), picture, key=SAMPLES, step=step)

        self._post_file(work)

    def log_text(self, run: str, text: str, file: str) -> None:
        """Log a text as a file."""
        self._post_file(lambda: self._live.log_text(self._id(run), text, file))

    def log_table(self, run: str, table: Any, file: str) -> None:
        """Log the first rows of a DataFrame so that MLflow shows them."""
        text = table.head(MAX_TABLE_ROWS).to_json(orient="split", index=False)  # pandas imports

        def work() -> None:
            # Not log_table: it would add to the table that a resumed run already holds.
            self._live.log_text(self._id(run), text, file)
            tables = json.dumps(
                [
                    {"path": path, "type": "table"}
                    for path in sorted(self._tables.setdefault(run, {file}) | {file})
                ]
            )
            self._tables[run].add(file)
            self._live.set_tag(self._id(run), LOGGED_ARTIFACTS, tables)

        self._post_file(work)

    def log_input(self, run: str, name: str, *, digest: str, source: str) -> None:
        """Log the data of a run by their digest."""
        data = Dataset(
            name=name, digest=digest[:MAX_DIGEST_LENGTH], source_type="local", source=source
        )
        item = DatasetInput(data, [InputTag("mlflow.data.context", "model_input")])
        self._data[run] = {"dataset_name": data.name, "dataset_digest": data.digest}
        self._writer.post(lambda: self._live.log_inputs(self._id(run), [item]))
        self.set_tags(run, {f"data.{name}.digest": digest})

    def describe(self, run: str, name: str, tags: Mapping[str, str]) -> None:
        """Give a run the name and the tags by which people find it."""

        def work() -> None:
            self._live.update_run(self._id(run), name=name)
            log_tags(self._live, self._id(run), tags)

        self._writer.post(work)

    def set_tags(self, run: str, tags: Mapping[str, str], *, is_last: bool = False) -> None:
        """Set tags; ``is_last`` marks those about the end of a run."""
        self._writer.post(lambda: log_tags(self._live, self._id(run), tags), is_last=is_last)

    def end(
        self,
        statuses: Mapping[str, str],
        *,
        ends: Mapping[str, int] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Set the end status and end times of runs (milliseconds; else now), and write queued entries.

        Args:
            statuses: run -> status.
            ends: run -> time.
            seconds: time limit; without it, this takes as long as the store accepts entries.
        """
        self._writer.post(self._flush)
        self._writer.post(self._fail_models, is_last=True)
        for run, status in statuses.items():
            self._writer.post(
                partial(self._terminate, run, status, (ends or {}).get(run)), is_last=True
            )
        self._writer.close(timeout=seconds)

    @property
    def _live(self) -> MlflowClient:
        if self._client is None:
            raise RuntimeError("the MLflow client must be connected, got none; call open first")
        return self._client

    def _post_file(self, work: Callable[[], Any]) -> None:
        """Queue an entry for the store of files, which is separate from that of metrics and may fail alone."""

        def guarded() -> None:
            if self._keeps_files:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - whatever a file store raises, metrics go on
                    self._keeps_files = False
                    reason = root_cause(error)
                    logger.warning(
                        "MLflow cannot keep files (%s); the run goes on with parameters and metrics",
                        reason,
                    )

        self._writer.post(guarded)

    def _id(self, run: str) -> str:
        found = self.children[run] if run else self.parent
        if not found:
            raise LookupError(f"{run or 'the parent run'} was not opened")
        return found

    def _create(self, name: str, tags: Mapping[str, str], begun: int | None = None) -> str:
        return str(
            self._live.create_run(
                self._experiment_id,
                start_time=begun,
                tags=tag_names({**self._tags, **tags}),
                run_name=name,
            ).info.run_id
        )

    def _flush(self) -> None:
        # Not before the store was opened: on a busy machine that takes longer than a flush waits.
        if self._client is not None:
            self._rows.flush(self._client)
            self._sample_machine()

    def _sample_machine(self) -> None:
        """Log the load of the machine now and then, under the names of a tab of MLflow's page."""
        if not self.parent or time.monotonic() < self._sampled + SAMPLE_SECONDS:
            return
        self._sampled, now = time.monotonic(), int(time.time() * 1000)
        found = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": psutil.virtual_memory().used / 2**20,
        }
        log_metrics(
            self._live,
            self.parent,
            [Metric(name, value, now, self._samples) for name, value in found.items()],
        )
        self._samples += 1

    def _fail_models(self) -> None:
        """Mark announced models without files as failed."""
        while self._models:
            _, model = self._models.popitem()
            self._live.finalize_logged_model(model, "FAILED")

    def _terminate(self, run: str, status: str, end: int | None) -> None:
        # A resumed run without any step left keeps its earlier end.
        found = self._id(run)
        before = self._ends.get(found) if status == "FINISHED" else None
        self._live.set_terminated(found, status, end or before)
