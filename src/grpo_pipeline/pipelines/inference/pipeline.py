"""Wiring of the prediction: a trained arm and a manifest without labels -> scores, points and heatmaps."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipelines.inference import nodes


def create_pipeline() -> Pipeline:
    """Score the images of ``attention.predict.raw`` with the newest model of an arm; no labels are read."""
    params = "params:attention.predict"
    return Pipeline(
        [
            Node(
                nodes.load_predictor,
                inputs=[params, "attention.predict.models"],
                outputs="attention.predict.predictor",
                name="load_predictor",
            ),
            Node(
                nodes.check_cores,
                inputs=[
                    params,
                    "params:attention.data",
                    "attention.predict.raw",
                    "attention.predict.models",
                    "attention.predict.predictor",
                ],
                outputs=["attention.predict.checked", "attention.predict.quarantine", "attention.predict.reading"],
                name="check_cores",
            ),
            Node(
                nodes.predict_cores,
                inputs=[params, "attention.predict.raw", "attention.predict.checked", "attention.predict.predictor"],
                outputs=["attention.predict.heatmaps", "attention.predict.predicted"],
                name="predict_cores",
            ),
            Node(
                nodes.tabulate,
                inputs=["attention.predict.predicted", "attention.predict.reading"],
                outputs=[
                    "attention.predict.scores",
                    "attention.predict.patients",
                    "attention.predict.points",
                    "attention.predict.sheet",
                    "attention.predict.report",
                ],
                name="tabulate_scores",
            ),
        ],
        tags=["attention", "predict"],
    )
