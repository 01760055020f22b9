"""Wiring of the comparison: examples -> cells, one by one -> result, tables, figures, page."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.compare import nodes


def create_pipeline(task: str) -> Pipeline:
    """Train the grid ``<task>.compare`` on ``<task>.examples``.

    ``<task>.compare.cells_before`` and ``<task>.compare.cells`` are one folder under two names: what is finished is looked
    up in it, and what is trained is written to it.
    """
    # The parameters come first: Kedro matches their types to the function's arguments by position.
    params = [f"params:{task}.compare", f"params:{task}.evaluation"]
    return Pipeline(
        [
            # Its name begins with a: of the nodes that wait for nothing, Kedro runs this one first.
            Node(nodes.arrange_cells, [*params, "parameters"], f"{task}.compare.plan", name="arrange_cells"),
            Node(
                nodes.train_cells,
                [*params, f"{task}.compare.plan", f"{task}.examples", f"{task}.compare.cells_before"],
                f"{task}.compare.cells",
                name="train_cells",
            ),
        ],
        tags=[task, "compare"],
    )
