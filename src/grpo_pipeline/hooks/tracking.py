"""Tell the tracker what happens in a run.

What writes to MLflow is imported when a run begins: the command line opens without it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from grpo_pipeline.runs.config_loader import base_parameters
from grpo_pipeline.tracking.mlflow_config import MlflowConfig, parse_config
from grpo_pipeline.tracking.store import tracking_uri, use_store

if TYPE_CHECKING:
    from grpo_pipeline.tracking.tracker import Tracker

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
