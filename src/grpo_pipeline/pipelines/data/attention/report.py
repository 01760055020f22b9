"""Wiring of the attention task's own figures and of its page."""

from collections.abc import Sequence

from kedro.pipeline import Node

from grpo_pipeline.pipelines.reporting.nodes import draw_image_sheet, plot_roc, render_report

PARTS = (
    *("comparison", "learning_curves", "roc", "image_sheet", "data_report", "quarantine"),
    *("reward_audit", "reward_audit_figure"),
)


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose cores are drawn."""
    params = {"params": "params:attention.evaluation"}
    return [
        Node(
            plot_roc,
            inputs=params | {arm: f"attention.{arm}.predictions" for arm in arms},
            outputs="attention.roc",
            name="plot_roc",
        ),
        Node(
            draw_image_sheet,
            inputs=params | {"showcase": f"attention.{shown}.showcase"},
            outputs="attention.image_sheet",
            name="draw_image_sheet",
        ),
        Node(
            render_report,
            inputs=params | {name: f"attention.{name}" for name in PARTS} | {"parameters": "parameters"},
            outputs="attention.report",
            name="render_report",
        ),
    ]
