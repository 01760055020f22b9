"""Wire the comparison: examples -> trials, one by one -> result, tables, figures, page."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.evaluation.nodes import read_commit, state_grid_answer
from grpo_pipeline.pipelines.experiments.compare import nodes


def create_pipeline(task: str) -> Pipeline:
    """Train the grid ``<task>.compare`` on ``<task>.examples``.

    ``<task>.compare.trials_before`` and ``<task>.compare.trials`` are one folder under two names: what is finished is looked
    up in it, and what is trained is written to it.
    """
    # The parameters come first: Kedro matches their types to the function's arguments by position.
    evaluation, result = f"params:{task}.evaluation", f"{task}.compare.result"
    params = [f"params:{task}.compare", evaluation]
    return Pipeline(
        [
            # Kedro sorts nodes without predecessors by name: because of its first letter a, this node runs first.
            Node(
                nodes.arrange_trials,
                [*params, "parameters"],
                f"{task}.compare.plan",
                name="arrange_trials",
                namespace=f"{task}.compare",
            ),
            Node(
                nodes.train_trial,
                [
                    *params,
                    "params:executor",
                    f"{task}.compare.plan",
                    f"{task}.examples",
                    f"{task}.compare.trials_before",
                ],
                f"{task}.compare.trials",
                name="train_trial",
                namespace=f"{task}.compare",
            ),
            Node(
                read_commit, None, f"{task}.commit", name="read_commit", namespace=f"{task}.compare"
            ),
            Node(
                nodes.tabulate_trials,
                [*params, f"{task}.compare.plan", f"{task}.compare.trials", f"{task}.commit"],
                result,
                name="tabulate_trials",
                namespace=f"{task}.compare",
            ),
            Node(
                nodes.write_tables,
                [evaluation, result],
                [f"{task}.compare.table", f"{task}.compare.summary"],
                name="write_tables",
                namespace=f"{task}.compare",
            ),
            Node(
                state_grid_answer,
                [evaluation, result],
                f"{task}.compare.answer",
                name="state_answer",
                namespace=f"{task}.compare",
            ),
            Node(
                nodes.draw_forests,
                [evaluation, result],
                f"{task}.compare.forests",
                name="draw_forests",
                namespace=f"{task}.compare",
            ),
            Node(
                nodes.render_page,
                [
                    evaluation,
                    result,
                    f"{task}.compare.answer",
                    f"{task}.compare.forests",
                    "parameters",
                ],
                f"{task}.compare.page",
                name="render_page",
                namespace=f"{task}.compare",
            ),
        ],
        tags=[task, "compare"],
    )
