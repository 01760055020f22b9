"""Wiring of the molecule task's own figures and of its page."""

from collections.abc import Sequence

from kedro.pipeline import Node

from grpo_pipeline.pipelines.reporting.molecules_nodes import (
    draw_curves,
    draw_distributions,
    draw_molecules,
    draw_validity,
    measure_window,
    render_molecules,
)

PARTS = (
    *("comparison", "curves", "distributions", "validity", "logp_window", "data_report", "quarantine"),
    *("reward_audit", "reward_audit_figure"),
)
DRAWINGS = [f"{choice}_{when}" for choice in ("best", "random") for when in ("before", "after")]


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose rows stand beside the training molecules."""
    params, rewards = {"params": "params:molecules.evaluation"}, {"rewards": "params:molecules.rewards"}
    predictions = {arm: f"molecules.{arm}.predictions" for arm in arms}
    drawings = {f"{arm}_{what}": f"molecules.{arm}.{what}" for arm in arms for what in DRAWINGS}
    page = {"predictions": f"molecules.{shown}.predictions", "parameters": "parameters"}
    return [
        Node(draw_molecules, inputs=params | predictions, outputs=drawings, name="draw_molecules"),
        Node(
            draw_curves,
            inputs={arm: f"molecules.{arm}.metric_rows" for arm in arms},
            outputs="molecules.curves",
            name="draw_curves",
        ),
        Node(
            draw_distributions,
            inputs=params | rewards | predictions,
            outputs="molecules.distributions",
            name="draw_distributions",
        ),
        Node(draw_validity, inputs=params | predictions, outputs="molecules.validity", name="draw_validity"),
        Node(
            measure_window,
            inputs=params | rewards | predictions,
            outputs="molecules.logp_window",
            name="measure_window",
        ),
        Node(
            render_molecules,
            inputs=params | {name: f"molecules.{name}" for name in PARTS} | page | drawings,
            outputs="molecules.report",
            name="render_molecules",
        ),
    ]
