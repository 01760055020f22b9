"""Show how far a run is, and keep how long its nodes took."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from grpo_pipeline.hooks.run_ownership import RunHooks
from grpo_pipeline.runs.progress import is_off
from grpo_pipeline.runs.run_line import RunLine, expected_seconds, keep_seconds


class RunLineHooks:
    """Show how far a run is, from its first node to its end."""

    def __init__(self, runs: RunHooks) -> None:
        """Name who knows the folders that a run writes."""
        self._runs = runs
        self._line: RunLine | None = None
        self._file: Path | None = None

    @hook_impl
    def before_pipeline_run(self, run_params: Mapping[str, Any], pipeline: Pipeline) -> None:
        """Open the line."""
        folders = self._runs.folders
        self._file = folders[0].seconds if folders else None
        known = expected_seconds(self._file) if self._file else {}
        if not is_off():
            names = run_params.get("pipeline_names") or [run_params.get("pipeline_name")]
            tasks = dict.fromkeys(
                (node.namespace or "").partition("-")[0] for node in pipeline.nodes
            )
            title = ", ".join(filter(None, names)) or ", ".join(filter(None, tasks)) or "run"
            self._line = RunLine(
                title, {node.name: known.get(node.name) for node in pipeline.nodes}
            )

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Say which node begins; ``<task>-<stage>_<arm>`` is the box that it belongs to."""
        if self._line:
            box = (node.namespace or "").partition(".")[0].partition("-")[2]
            stage, _, arm = box.partition("_")
            self._line.begin(node.name, stage or "run", arm)

    @hook_impl(tryfirst=True)
    def after_pipeline_run(self) -> None:
        """Keep how long the nodes took; the line ends before the answer is printed."""
        if self._line:
            self._line.finish()
            if self._file:
                keep_seconds(self._file, self._line.seconds())
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Close the line, however the run has ended."""
        line, self._line = self._line, None
        if line:
            line.close()
