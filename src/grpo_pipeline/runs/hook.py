"""Kedro hook that locks the folders of a run, records its artefacts, and puts its files in place at the end."""

import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline

from grpo_pipeline.pipeline_registry import use_arms
from grpo_pipeline.runs.areas import remedies, written_areas
from grpo_pipeline.runs.lock import RunLock
from grpo_pipeline.runs.process import begin_run, command_line
from grpo_pipeline.runs.provenance import Provenance, pin_recorded

PACKAGE = "grpo_pipeline"


class RunHooks:
    """Let a run own the folders that it writes, from before its first write to its end.

    Attributes:
        run: identity of the current run; not made from the time.
    """

    def __init__(self) -> None:
        self.run = ""
        self._data, self._globals = Path("data"), dict[str, Any]()
        self._locks: list[RunLock] = []
        self._provenance: Provenance | None = None
        self._pid = 0

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Learn where the data lie, and let the pipelines have the arms of the parameters, whatever session asks."""
        try:
            self._globals = dict(context.config_loader["globals"])
        except (KeyError, MissingConfigException):
            self._globals = {}
        self._data = (
            Path(context.project_path) / str(self._globals.get("data", "data"))
        ).absolute()
        if context._package_name == PACKAGE:  # another project has tasks of its own
            use_arms(context.config_loader["parameters"])

    @hook_impl
    def after_catalog_created(self, catalog: DataCatalog, save_version: str | None) -> None:
        """Outside of a run (it alone has a version to save) let readers load what the last successful run wrote down."""
        if save_version is None:
            pin_recorded(catalog, self._data)

    @hook_impl(tryfirst=True)
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: DataCatalog
    ) -> None:
        """Take the locks of all folders that the run will write. Nothing is written yet."""
        self.run, self._pid = begin_run(), os.getpid()
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            for area in written_areas(pipeline, catalog, self._data):
                lock = RunLock(
                    area.lock, shown=area.name, remedy=" or ".join(remedies(area, self._globals))
                )
                lock.take(run=self.run, command=command_line(sys.argv), since=since)
                self._locks.append(lock)
            self._provenance = Provenance(
                run=self.run, since=since, data=self._data, pipeline=pipeline, catalog=catalog
            )
            stages = not run_params.get("only_missing_outputs")
            self._provenance.begin(
                chosen=frozenset(run_params.get("load_versions") or ()), stages=stages
            )
        except BaseException:
            self.end()
            raise

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        """Refuse what is not what the run that it names has made."""
        if self._live:
            self._live.loaded(dataset_name, data)

    @hook_impl
    def before_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Note what changes; a checkpoint is told whose it is."""
        if self._live:
            self._live.saving(dataset_name, data)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Note what was written."""
        if self._live:
            self._live.saved(dataset_name, data)

    @hook_impl(tryfirst=True)
    def after_pipeline_run(self) -> None:
        """Put the results in place, before anybody is told of them."""
        if self._live:
            self._live.commit()

    @property
    def _live(self) -> Provenance | None:
        """The record of the run that is under way; None in the forked processes of a parallel runner."""
        return self._provenance if os.getpid() == self._pid else None

    def end(self) -> None:
        """Remove what was not put in place and give the folders back; a second call does nothing."""
        if self._live and self._locks:
            self._live.end()
            self._provenance = None
        while self._locks and os.getpid() == self._pid:
            self._locks.pop().release()


class RunEndHooks:
    """Let a run's folders go when everything else has been told that it ended: files that wait to be logged lie in them.

    Attributes:
        ends_last: the session tells this hook last of how a run ended.
    """

    ends_last = True

    def __init__(self, runs: RunHooks) -> None:
        self._runs = runs

    @hook_impl(trylast=True)
    def after_pipeline_run(self) -> None:
        """Give the folders back."""
        self._runs.end()

    def on_run_ended(self, error: BaseException | None) -> None:
        """Give the folders back, however the run ended."""
        self._runs.end()
