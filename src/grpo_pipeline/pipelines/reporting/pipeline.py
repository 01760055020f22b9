"""Wiring of the reports: metric rows, predictions, samples and comparison -> figures and one page."""

from collections.abc import Callable, Sequence

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.reporting.nodes import plot_learning_curves

# (arms, the arm whose samples are shown) -> the nodes of a task's own figures and of its page
Pages = Callable[[Sequence[str], str], list[Node]]


def create_pipeline(task: str, arms: Sequence[str], pages: Pages, *, shown_arm: str = "") -> Pipeline:
    """Draw the figures of a task and put them on ``<task>.report``.

    Args:
        task: prefix of the catalogue names.
        arms: names of the arms, in the order of the report.
        pages: the task's own part.
        shown_arm: the arm whose samples are shown; the last one if not given.
    """
    curves = Node(
        plot_learning_curves,
        inputs={arm: f"{task}.{arm}.metric_rows" for arm in arms},
        outputs=f"{task}.learning_curves",
        name="plot_learning_curves",
    )
    return Pipeline([curves, *pages(arms, shown_arm or arms[-1])])
