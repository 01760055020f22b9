"""Wiring of the report: metric rows, predictions, showcase and comparison -> figures and one page."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.reporting.nodes import draw_image_sheet, plot_learning_curves, plot_roc, render_report

PAGE_PARTS = ("comparison", "learning_curves", "roc", "image_sheet", "data_report", "quarantine")


def create_pipeline(task: str, arms: Sequence[str], *, showcase_arm: str | None = None) -> Pipeline:
    """Draw the figures of a task and put them on ``<task>.report``.

    Args:
        task: prefix of the catalogue names.
        arms: names of the arms, in the order of the report.
        showcase_arm: the arm whose points and heatmaps are drawn; the last one if not given.
    """
    params = {"params": f"params:{task}.evaluation"}
    parts = {name: f"{task}.{name}" for name in PAGE_PARTS}
    showcase = {"showcase": f"{task}.{showcase_arm or arms[-1]}.showcase"}
    return Pipeline(
        [
            Node(
                plot_learning_curves,
                inputs={arm: f"{task}.{arm}.metric_rows" for arm in arms},
                outputs=f"{task}.learning_curves",
                name="plot_learning_curves",
            ),
            Node(
                plot_roc,
                inputs=params | {arm: f"{task}.{arm}.predictions" for arm in arms},
                outputs=f"{task}.roc",
                name="plot_roc",
            ),
            Node(draw_image_sheet, inputs=params | showcase, outputs=f"{task}.image_sheet", name="draw_image_sheet"),
            Node(
                render_report,
                inputs=params | parts | {"parameters": "parameters"},
                outputs=f"{task}.report",
                name="render_report",
            ),
        ]
    )
