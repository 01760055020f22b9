"""Check a run, lock its folders, record its artefacts, put its files in place, and end it."""

import atexit
import os
import sys
import threading
from collections.abc import Generator, Mapping
from datetime import datetime
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any, Protocol

from kedro.config import MissingConfigException
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog, SharedMemoryDataCatalog
from kedro.pipeline import Pipeline

from grpo_pipeline.pipeline_registry import use_arms
from grpo_pipeline.runs.context import PACKAGE
from grpo_pipeline.runs.lock import HeldError, RunLock
from grpo_pipeline.runs.parameters import check_parameters
from grpo_pipeline.runs.partial_run import absent_inputs, refuse_missing_inputs, refuse_versions
from grpo_pipeline.runs.process import command_line
from grpo_pipeline.runs.provenance import Provenance
from grpo_pipeline.runs.recorded_versions import pin_recorded
from grpo_pipeline.runs.result_folders import ResultFolder, remedies, written_folders
from grpo_pipeline.runs.run_identity import begin_run

SEQUENTIAL = (
    "--runner must be SequentialRunner, got {}: arms that are built at the same time do not begin from the same weights; leave "
    "--runner out"
)


def refuse_runner(name: str, catalog: DataCatalog) -> None:
    """Refuse a runner that runs several nodes at a time.

    The weights of a model begin from torch's global random state, and each arm sets it: two that are built at once in threads
    begin elsewhere than one after the other. A process for each node shares no model and calls no hooks.

    Raises:
        ValueError: naming the runner that works.
    """
    is_parallel = isinstance(catalog, SharedMemoryDataCatalog)
    if is_parallel or "ThreadRunner" in name:
        raise ValueError(SEQUENTIAL.format("ParallelRunner" if is_parallel else "ThreadRunner"))


def refuse_part(part: Pipeline, catalog: DataCatalog) -> None:
    """Refuse a part of a pipeline that begins behind values in memory; see ``refuse_missing_inputs``."""
    from kedro.framework.project import pipelines

    if absent_inputs(part, catalog):
        pipelines.set_requested(None)  # all of them may be named
        refuse_missing_inputs(part, catalog, registered=dict(pipelines))


def asked_pipelines() -> list[str]:
    """Return the names of the pipelines that the session is about to run; none for the default one, and without a run."""
    from kedro.framework.project import pipelines

    return pipelines._requested_pipelines or []


class RunHooks:
    """Let a run own the folders that it writes, from before its first write to its end.

    Attributes:
        run: identity of the current run; not made from the time.
        folders: those that it writes.
    """

    def __init__(self) -> None:
        self.run, self.folders = "", list[ResultFolder]()
        self._data, self._globals = Path("data"), dict[str, Any]()
        self._locks: list[RunLock] = []
        self._provenance: Provenance | None = None
        self._pid, self._thread, self._streaming = 0, 0, ""

    @hook_impl(tryfirst=True)
    def after_context_created(self, context: KedroContext) -> None:
        """Learn where the data lie, check the parameters, and let the pipelines have the arms of them.

        Raises:
            ParameterValidationError: with all values that are wrong.
            ValueError: for a name that nothing reads.
        """
        try:
            self._globals = dict(context.config_loader["globals"])
        except (KeyError, MissingConfigException):
            self._globals = {}
        self._data = (
            Path(context.project_path) / str(self._globals.get("data", "data"))
        ).absolute()
        if context._package_name == PACKAGE:  # another project has tasks, or nodes, of its own
            loader = context.config_loader
            parameters = loader["parameters"]
            check_parameters(parameters, loader, asked_pipelines())
            loader["parameters"] = parameters  # not to be read again
            use_arms(parameters)

    @hook_impl
    def after_catalog_created(self, catalog: DataCatalog, save_version: str | None) -> None:
        """Outside of a run (it alone has a version to save) let readers load what the last successful run wrote down."""
        if save_version is None:
            pin_recorded(catalog, self._data)

    @hook_impl(tryfirst=True)
    def before_pipeline_run(
        self, run_params: Mapping[str, Any], pipeline: Pipeline, catalog: DataCatalog
    ) -> None:
        """Refuse what cannot run, then take the locks of all folders that the run will write. Nothing is read or written yet.

        Raises:
            ValueError: for a runner that runs several nodes at a time, a version that is not there, and a part of a pipeline that
                begins behind values in memory.
            HeldError: if another run writes one of the folders.
        """
        refuse_runner(str(run_params.get("runner")), catalog)
        refuse_part(pipeline, catalog)
        chosen = run_params.get("load_versions") or {}
        refuse_versions(chosen, pipeline, catalog)
        self.run, self._pid, self._thread = begin_run(), os.getpid(), threading.get_ident()
        self._streaming = next((n.name for n in pipeline.nodes if isgeneratorfunction(n.func)), "")
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        self.folders = written_folders(pipeline, catalog, self._data)
        for results in self.folders:
            lock = RunLock(
                results.lock,
                shown=results.name,
                remedy=" or ".join(remedies(results, self._globals)),
            )
            lock.take(run=self.run, command=command_line(sys.argv), since=since)
            self._locks.append(lock)
        self._provenance = Provenance(
            run=self.run, since=since, data=self._data, pipeline=pipeline, catalog=catalog
        )
        stages = not run_params.get("only_missing_outputs")
        self._provenance.begin(chosen=frozenset(chosen), stages=stages)

    @hook_impl
    def before_node_run(self, is_async: bool) -> None:
        """Refuse what Kedro says of a runner with its first node only.

        Raises:
            ValueError: for a node in a thread of its own; for results that are saved in threads where a node streams them.
        """
        if self._live and threading.get_ident() != self._thread:
            raise ValueError(SEQUENTIAL.format("a runner with threads"))
        if is_async and self._streaming:
            raise ValueError(
                f"is_async must be false for a run with nodes that stream their results, got true with {self._streaming}; leave "
                "--async out"
            )

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

    def end(self, error: BaseException | None) -> None:
        """Remove what was not put in place and give the folders back; a second call does nothing."""
        if self._live and self._locks:
            self._live.end()
            self._provenance = None
        while self._locks and os.getpid() == self._pid:
            self._locks.pop().release()


class RunPart(Protocol):
    """Hold something of a run until it ends."""

    def end(self, error: BaseException | None) -> None:
        """Give it back; ``error`` is what ended the run, or None."""


class RunEndHooks:
    """Tell those that hold something of a run that it has ended, whichever session started it and however it ended.

    Kedro tells its hooks of what its runner raises, and neither of what another hook raises nor of Ctrl-C. A run of this thread
    that was cut off without a word is ended before the next one begins, or with the process.
    """

    def __init__(self, *parts: RunPart) -> None:
        """Name who is told, in this order."""
        self._parts = parts
        self._thread: threading.Thread | None = None  # of the run that is under way
        self._pid = 0

    @hook_impl(wrapper=True)
    def before_pipeline_run(self) -> Generator[None, Any, Any]:
        """Begin a run; all hooks begin theirs inside of this.

        Raises:
            HeldError: if another thread of this process runs a pipeline.
        """
        if self._is_elsewhere():
            raise HeldError(
                "a process must run one pipeline at a time, got a second one from another thread; wait for the first, or start "
                "the second in a process of its own"
            )
        self.on_run_ended(KeyboardInterrupt("cut off"))
        if not self._pid:
            atexit.register(self.on_run_ended, KeyboardInterrupt("the process ended"))
        self._thread, self._pid = threading.current_thread(), os.getpid()
        try:
            return (yield)
        except BaseException as error:
            self.on_run_ended(error)
            raise

    @hook_impl(wrapper=True)
    def after_pipeline_run(self) -> Generator[None, Any, Any]:
        """End a run that is done; one whose results could not be put in place, or said, has failed."""
        try:
            found = yield
        except BaseException as error:
            self.on_run_ended(error)
            raise
        self.on_run_ended(None)
        return found

    @hook_impl(wrapper=True)
    def on_pipeline_error(self, error: Exception) -> Generator[None, Any, Any]:
        """End a run that has failed."""
        try:
            return (yield)
        finally:
            self.on_run_ended(error)

    def on_run_ended(self, error: BaseException | None) -> None:
        """End the run that is under way, if one is; not that of another thread, nor in a forked process."""
        if self._thread is None or self._is_elsewhere() or self._pid != os.getpid():
            return
        self._thread = None
        for part in self._parts:
            part.end(error)

    def _is_elsewhere(self) -> bool:
        thread = self._thread
        return thread not in (None, threading.current_thread()) and thread.is_alive()
