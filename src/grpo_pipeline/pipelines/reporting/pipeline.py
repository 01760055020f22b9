"""Wiring of the reports: metric rows, predictions, samples and comparison -> figures and one page."""

from collections.abc import Sequence

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.reporting.dialogue_nodes import plot_scores_by_need, render_replies
from grpo_pipeline.pipelines.reporting.molecules_nodes import (
    draw_curves,
    draw_distributions,
    draw_molecules,
    draw_validity,
    measure_window,
    render_molecules,
)
from grpo_pipeline.pipelines.reporting.nodes import draw_image_sheet, plot_learning_curves, plot_roc, render_report

AUDIT = ("reward_audit", "reward_audit_figure")
ATTENTION_PARTS = ("comparison", "learning_curves", "roc", "image_sheet", *AUDIT, "data_report", "quarantine")
DIALOGUE_PARTS = (
    *("comparison", "learning_curves", "scores_by_need", "data_report", "token_report", "retrieval_report"),
    *("quarantine", *AUDIT),
)
MOLECULES_PARTS = ("comparison", "curves", "distributions", "validity", "logp_window", "data_report", "quarantine", *AUDIT)
DRAWINGS = [f"{choice}_{when}" for choice in ("best", "random") for when in ("before", "after")]


def create_pipeline(task: str, arms: Sequence[str], *, showcase_arm: str | None = None) -> Pipeline:
    """Draw the figures of a task and put them on ``<task>.report``.

    Args:
        task: prefix of the catalogue names; tells what is drawn.
        arms: names of the arms, in the order of the report.
        showcase_arm: the arm whose samples are shown; the last one if not given.

    Raises:
        ValueError: if the task has no report.
    """
    builders = {"attention": _attention_nodes, "dialogue": _dialogue_nodes, "molecules": _molecules_nodes}
    if task not in builders:
        raise ValueError(f"task must be one of {', '.join(builders)}, got {task!r}; write its page first")
    curves = Node(
        plot_learning_curves,
        inputs={arm: f"{task}.{arm}.metric_rows" for arm in arms},
        outputs=f"{task}.learning_curves",
        name="plot_learning_curves",
    )
    return Pipeline([curves, *builders[task](arms, showcase_arm or arms[-1])])


def _attention_nodes(arms: Sequence[str], shown: str) -> list[Node]:
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
            inputs=params | {name: f"attention.{name}" for name in ATTENTION_PARTS} | {"parameters": "parameters"},
            outputs="attention.report",
            name="render_report",
        ),
    ]


def _dialogue_nodes(arms: Sequence[str], shown: str) -> list[Node]:
    params = {"params": "params:dialogue.evaluation"}
    samples = {"rollouts": f"dialogue.{shown}.rollouts", "parameters": "parameters"}
    return [
        Node(
            plot_scores_by_need,
            inputs=params | {arm: f"dialogue.{arm}.predictions" for arm in arms},
            outputs="dialogue.scores_by_need",
            name="plot_scores_by_need",
        ),
        Node(
            render_replies,
            inputs=params | {name: f"dialogue.{name}" for name in DIALOGUE_PARTS} | samples,
            outputs="dialogue.report",
            name="render_replies",
        ),
    ]


def _molecules_nodes(arms: Sequence[str], shown: str) -> list[Node]:
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
            inputs=params | {name: f"molecules.{name}" for name in MOLECULES_PARTS} | page | drawings,
            outputs="molecules.report",
            name="render_molecules",
        ),
    ]
