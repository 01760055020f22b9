"""Print at the end of a run what it has found, and where its page, graph and MLflow runs are.

What draws tables is imported when a run begins: the command line opens without it.
"""

from collections.abc import Mapping
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog
from rich.console import Console

from grpo_pipeline.hooks.tracking import MlflowHooks

COLUMNS = 120  # of a log file, which has no width of its own


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
        from grpo_pipeline.tracking.dataset_files import dataset_path
        from grpo_pipeline.tracking.reward_audit_summary import reward_audit_text
        from grpo_pipeline.tracking.summary import answer_parts, comparison_parts, prediction_text

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
        from grpo_pipeline.tracking.dataset_files import dataset_path
        from grpo_pipeline.tracking.summary import places

        report = dataset_path(catalog.get(page))
        found = report if report and report.exists() else None
        console.print(
            places(found, graph=self._mlflow.graph, tracker=self._mlflow.tracker), soft_wrap=True
        )
