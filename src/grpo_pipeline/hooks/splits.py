"""Say which splits the prepared data have, before anything is trained on them."""

from collections.abc import Mapping
from typing import Any

from kedro.framework.hooks import hook_impl

from grpo_pipeline.runs.progress import print_line
from grpo_pipeline.tasks import TASKS, find_task


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
        print_line("\n".join(lines))
