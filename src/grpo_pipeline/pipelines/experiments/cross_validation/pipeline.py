"""Wire cross-validation: folds -> (inner trials -> choice ->) trials -> out-of-fold predictions -> result."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.evaluation.nodes import read_commit, state_grid_answer
from grpo_pipeline.pipelines.experiments.cross_validation import nodes


def create_pipeline(task: str) -> Pipeline:
    """Cross-validate the arms of ``<task>.cross_validation``.

    ``…inner_trials_before`` and ``…inner_trials`` name the same folder, as do ``…trials_before`` and ``…trials``. Under the first
    name finished trials are read, under the second new trials are written.
    """
    name = f"{task}.cross_validation"
    # The parameters come first: Kedro matches their types to the function's arguments by position.
    evaluation = f"params:{task}.evaluation"
    params, plan = [f"params:{name}", evaluation], [f"{name}.settings", f"{name}.folds"]
    # Kedro sorts nodes without predecessors by name: because of its first letter a, this node runs first.
    divide = [
        Node(
            nodes.arrange_arms,
            [*params, "parameters"],
            f"{name}.settings",
            name="arrange_arms",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.plan_folds,
            [*params, f"{task}.examples"],
            f"{name}.folds",
            name="plan_folds",
            namespace=f"{task}.cross_validation",
        ),
    ]
    train = [
        Node(
            nodes.train_inner_trials,
            [*params, "params:executor", *plan, f"{task}.examples", f"{name}.inner_trials_before"],
            f"{name}.inner_trials",
            name="train_inner_trials",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.choose_settings,
            [*params, *plan, f"{name}.inner_trials"],
            f"{name}.choices",
            name="choose_settings",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.train_folds,
            [
                *params,
                "params:executor",
                *plan,
                f"{name}.choices",
                f"{task}.examples",
                f"{name}.trials_before",
            ],
            f"{name}.trials",
            name="train_folds",
            namespace=f"{task}.cross_validation",
        ),
    ]
    report = [
        Node(
            read_commit,
            None,
            f"{task}.commit",
            name="read_commit",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.pool_predictions,
            [*params, *plan, f"{name}.choices", f"{name}.trials"],
            f"{name}.out_of_fold",
            name="pool_predictions",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.score_predictions,
            [*params, f"{name}.folds", f"{name}.choices", f"{name}.out_of_fold", f"{task}.commit"],
            f"{name}.result",
            name="score_predictions",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.write_predictions,
            f"{name}.out_of_fold",
            f"{name}.predictions",
            name="write_predictions",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.write_summary,
            [evaluation, f"{name}.result"],
            f"{name}.summary",
            name="write_summary",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.draw_folds,
            [evaluation, f"{name}.result"],
            f"{name}.figures",
            name="draw_folds",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            state_grid_answer,
            [evaluation, f"{name}.result"],
            f"{name}.answer",
            name="state_answer",
            namespace=f"{task}.cross_validation",
        ),
        Node(
            nodes.render_page,
            [evaluation, f"{name}.result", f"{name}.answer", f"{name}.figures", "parameters"],
            f"{name}.page",
            name="render_page",
            namespace=f"{task}.cross_validation",
        ),
    ]
    return Pipeline([*divide, *train, *report], tags=[task, "cross_validation"])
