"""Kedro hooks: MLflow tracking, warnings while a run goes on, and the summary at its end.

What writes to MLflow and what draws tables is imported when a run begins: the command line opens without it.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node
from rich.console import Console

from grpo_pipeline.runs.config_loader import base_parameters
from grpo_pipeline.runs.dead_coefficients import DeadCoefficients
from grpo_pipeline.runs.devices import check_devices
from grpo_pipeline.runs.progress import say
from grpo_pipeline.runs.threads import compute_in
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tracking.store import MlflowConfig, parse_config, tracking_uri, use_store

if TYPE_CHECKING:
    from grpo_pipeline.tracking.tracker import Tracker

COLUMNS = 120  # of a log file, which has no width of its own
GRAPH = Path("data/08_reporting/viz/index.html")  # written by `make viz-build`


class MlflowHooks:
    """Tell the tracker what happens in a run.

    Attributes:
        tracker: of the current run, None before one starts.
        has_checkpoint: whether this run has saved one, so that it can be gone on with.
    """

    def __init__(self) -> None:
        self.tracker: Tracker | None = None
        self.has_checkpoint = False
        self._config, self._project, self._env = MlflowConfig(), Path(), "local"
        self._parameters: Mapping[str, Any] = {}
        self._catalog: Mapping[str, Any] = {}
        self._loader: Any = {"parameters": {}}
        self._pid = 0

    @property
    def graph(self) -> Path | None:
        """The static site of the pipeline graph; None where nobody built it."""
        path = self._project / GRAPH
        return path if path.is_file() else None

    @property
    def _live(self) -> "Tracker | None":
        """The tracker; None in the forked processes of a parallel runner, which have no writer."""
        return self.tracker if os.getpid() == self._pid else None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Read mlflow.yml; the file may be absent."""
        try:
            self._config = parse_config(context.config_loader["mlflow"])
        except (KeyError, MissingConfigException):
            self._config = MlflowConfig()
        self._project, self._env = Path(context.project_path), context.env or "local"
        self._loader = context.config_loader
        use_store(tracking_uri(self._config, self._project, environ=os.environ))

    @hook_impl
    def after_catalog_created(
        self, conf_catalog: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> None:
        """Keep the resolved parameters and the catalogue's configuration."""
        self._catalog, self._parameters = conf_catalog, parameters["parameters"]

    @hook_impl
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: DataCatalog
    ) -> None:
        """Open the parent run."""
        from grpo_pipeline.tracking.tracker import Tracker

        self.has_checkpoint = False
        names = sorted(run_params["pipeline_names"] or ["__default__"])
        tags = {
            "env": self._env,
            "kedro.pipeline": ",".join(names),
            "kedro.session": str(run_params["run_id"]),
        }
        self._pid, self.tracker = (
            os.getpid(),
            Tracker(self._config, project=self._project, parameters=self._parameters),
        )
        given, defaults = self._loader["parameters"], base_parameters(self._loader)
        self.tracker.start(
            pipeline, catalog, names=names, tags=tags, given=given, defaults=defaults
        )
        self.tracker.log_config(self._catalog)

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Open the child run of an arm with its first node."""
        if self._live:
            self._live.node_started(node)

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        """Note when an arm ends."""
        if self._live:
            self._live.node_ended(node)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any, node: Node) -> None:
        """Read the child run's id from a checkpoint; log digests."""
        if self._live:
            self._live.loaded(dataset_name, data, node)

    @hook_impl
    def before_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Write the child run's id into a checkpoint."""
        if self._live:
            self._live.saving(dataset_name, data)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Log metric rows, comparisons, files and tables."""
        self.has_checkpoint |= dataset_name.endswith(".checkpoint") and data is not False
        if self._live:
            self._live.saved(dataset_name, data)

    @hook_impl
    def after_pipeline_run(self) -> None:
        """End all runs as FINISHED."""
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """End the runs that are not done by what ended the command; a second call does nothing."""
        if self._live:
            self._live.finish(error)


class ThreadHooks:
    """Fix how many threads compute, before anything does: for the command line and for whoever opens the catalogue."""

    @hook_impl(tryfirst=True)
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Read the parameter ``threads``."""
        compute_in(parameters["parameters"].get("threads", 1))


class DeviceHooks:
    """Refuse a run on a device that is not there."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Any] = {}

    @hook_impl
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Keep the parameters."""
        self._parameters = parameters["parameters"]

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Look for the device of each task, before anything is locked, read or tracked."""
        check_devices(pipeline, self._parameters)


class WatchHooks:
    """Warn while training runs about what does nothing."""

    def __init__(self) -> None:
        self._dead = DeadCoefficients()

    @hook_impl
    def before_pipeline_run(self) -> None:
        """Start counting anew."""
        self._dead = DeadCoefficients()

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Read the metric rows of an arm."""
        if dataset_name.endswith(".metric_rows"):
            for sentence in self._dead.read(dataset_name.removesuffix(".metric_rows"), data):
                logging.getLogger(__name__).warning(sentence)


class DataHooks:
    """Say which splits the prepared data have, before anything is trained on them."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Any] = {}
        self._told: set[str] = set()

    @hook_impl
    def before_pipeline_run(self) -> None:
        """Begin anew: a session may run more than once."""
        self._told.clear()

    @hook_impl
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Keep the parameters."""
        self._parameters = parameters["parameters"]

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Print the table of the examples of a task."""
        name, _, kind = dataset_name.rpartition(".")
        table = getattr(data, "table", None)
        if kind != "examples" or name not in TASKS or table is None or "split" not in table:
            return
        if name in self._told:  # large data are saved in pieces, each with the whole table
            return
        self._told.add(name)
        from grpo_pipeline.pipelines.reporting.page import plain
        from grpo_pipeline.pipelines.reporting.splits import split_lines

        section = plain(self._parameters.get(name) or {})  # Kedro may have made models of it
        cluster = str(section.get("evaluation", {}).get("cluster", ""))
        spec = find_task(name)
        lines = split_lines(table, task=name, noun=spec.noun, cluster=cluster, classes=spec.classes)
        say("\n".join(lines))


class ArmHooks:
    """End the processes that train arms with the run, however it ends."""

    @hook_impl
    def before_pipeline_run(self) -> None:
        """Forget what a run before this one has left."""
        self._close()

    @hook_impl
    def after_pipeline_run(self) -> None:
        """End what nobody has asked for."""
        self._close()

    @hook_impl
    def on_pipeline_error(self) -> None:
        """End everything after an error."""
        self._close()

    def on_run_ended(self, error: BaseException) -> None:
        """End everything after Ctrl-C and SIGTERM, too."""
        self._close()

    def _close(self) -> None:
        at_once = sys.modules.get(
            "grpo_pipeline.pipelines.training.at_once"
        )  # a run that trains nothing does without torch
        if at_once is not None:
            at_once.OF_RUN.close()


class SummaryHooks:
    """Print the comparisons and predictions that a run has made, and where its page, graph and MLflow runs are."""

    def __init__(self, mlflow: MlflowHooks) -> None:
        self._mlflow = mlflow
        self._parameters: Mapping[str, Any] = {}
        self._comparisons: dict[str, Mapping[str, Any]] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._audits: dict[str, str] = {}
        self._rewards: dict[str, Mapping[str, Any]] = {}
        self._summaries: dict[str, str] = {}
        self._predictions: dict[str, Mapping[str, Any]] = {}

    @hook_impl
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Keep the parameters."""
        self._parameters = parameters["parameters"]

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Keep an answer, a comparison, and the tables of the audits, for the end."""
        if dataset_name.endswith(".gradient_flow"):
            from grpo_pipeline.tracking.summary import flow_table

            self._audits[dataset_name] = flow_table(data)
        if dataset_name.endswith(".reward_audit"):
            self._rewards[dataset_name.removesuffix(".reward_audit")] = data
        if dataset_name.endswith(".predict.report"):
            self._predictions[dataset_name.removesuffix(".report")] = data
        if dataset_name.endswith(".summary"):
            self._summaries[dataset_name.removesuffix(".summary")] = str(data)
        if dataset_name.endswith(".comparison") and isinstance(data, Mapping):
            self._comparisons[dataset_name.removesuffix(".comparison")] = data
        if dataset_name.endswith(".answer"):
            self._answers[dataset_name.removesuffix(".answer")] = data

    @hook_impl(trylast=True)
    def after_pipeline_run(self, catalog: DataCatalog) -> None:
        """Print the tables, once."""
        from grpo_pipeline.pipelines.reporting.page import plain
        from grpo_pipeline.statistics.answer import Answer
        from grpo_pipeline.tracking.summary import (
            answer_parts,
            comparison_parts,
            prediction_text,
            reward_audit_text,
        )
        from grpo_pipeline.tracking.tracker import dataset_path

        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=COLUMNS)
        for task, document in self._rewards.items():
            text = reward_audit_text(document, is_brief=task in self._comparisons)
            console.print(f"{task}.reward_audit, {text}", markup=False, soft_wrap=True)
        self._rewards.clear()
        for name in dict.fromkeys([*self._comparisons, *self._answers, *self._summaries]):
            answer = self._answers.get(name)
            # A run that ends with the comparison has stated no answer.
            if self._parameters.get("details") or answer is None:
                if name in self._comparisons:
                    section = plain(self._parameters.get(name) or {})
                    options = section.get("evaluation", {}).get("metric_options", {})
                    for part in comparison_parts(self._comparisons[name], options):
                        console.print(part)
                if name in self._summaries:
                    console.print(self._summaries[name], markup=False, soft_wrap=True)
            if answer is not None:
                for part in answer_parts(Answer.model_validate(answer)):
                    console.print(part)
            page = "report" if name in self._comparisons else "page"
            self._print_places(console, catalog, page=f"{name}.{page}")
        self._comparisons.clear()
        self._answers.clear()
        self._summaries.clear()
        for name, text in self._audits.items():
            console.print(f"{name}\n{text}", markup=False, soft_wrap=True)
        self._audits.clear()
        for name, prediction in self._predictions.items():
            # A task has scores of rows, or samples for them.
            written = {
                what: dataset_path(catalog.get(f"{name}.{what}")) for what in ("scores", "samples")
            }
            where = {what: path for what, path in written.items() if path and path.is_file()}
            console.print(prediction_text(prediction, where=where), markup=False, soft_wrap=True)
        self._predictions.clear()

    def _print_places(self, console: Console, catalog: DataCatalog, *, page: str) -> None:
        from grpo_pipeline.tracking.summary import places
        from grpo_pipeline.tracking.tracker import dataset_path

        report = dataset_path(catalog.get(page))
        found = report if report and report.exists() else None
        console.print(
            places(found, graph=self._mlflow.graph, tracker=self._mlflow.tracker), soft_wrap=True
        )
