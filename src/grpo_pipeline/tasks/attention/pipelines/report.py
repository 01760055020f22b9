"""Wiring of the attention task's own figures and of its page."""

from collections.abc import Sequence

from kedro.pipeline import Node

from grpo_pipeline.tasks.attention.pipelines.report_nodes import (
    PARTS,
    draw_animation,
    draw_image_sheet,
    plot_roc,
    render_report,
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
            namespace="attention.report",
        ),
        Node(
            draw_image_sheet,
            inputs=params | {"showcase": f"attention.{shown}.showcase"},
            outputs="attention.image_sheet",
            name="draw_image_sheet",
            namespace="attention.report",
        ),
        Node(
            draw_animation,
            inputs=params | {"frames": f"attention.{shown}.frames"},
            outputs="attention.animation",
            name="draw_animation",
            namespace="attention.report",
        ),
        Node(
            render_report,
            inputs=params
            | {name: f"attention.{name}" for name in PARTS}
            | {"parameters": "parameters"},
            outputs="attention.report",
            name="render_report",
            namespace="attention.report",
        ),
    ]
