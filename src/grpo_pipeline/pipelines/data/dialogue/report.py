"""Wiring of the dialogue task's own figures and of its page."""

from collections.abc import Sequence

from kedro.pipeline import Node

from grpo_pipeline.pipelines.reporting.dialogue_nodes import plot_scores_by_need, render_replies

PARTS = (
    *("comparison", "learning_curves", "scores_by_need", "data_report", "token_report", "retrieval_report", "quarantine"),
    *("reward_audit", "reward_audit_figure"),
)


def create_report(arms: Sequence[str], shown: str) -> list[Node]:
    """Return the nodes of these arms' page; ``shown`` is the arm whose replies are shown."""
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
            inputs=params | {name: f"dialogue.{name}" for name in PARTS} | samples,
            outputs="dialogue.report",
            name="render_replies",
        ),
    ]
