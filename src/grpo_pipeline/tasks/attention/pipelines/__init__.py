"""The Kedro side of the attention task: data, preparation, report, prediction."""

from grpo_pipeline.tasks.attention.pipelines.pipeline import (
    adapt_preparation,
    create_pipeline,
    create_preparation,
)
from grpo_pipeline.tasks.attention.pipelines.prediction import (
    create_prediction,
    prediction_params,
)
from grpo_pipeline.tasks.attention.pipelines.report import create_report

__all__ = [
    "adapt_preparation",
    "create_pipeline",
    "create_prediction",
    "create_preparation",
    "create_report",
    "prediction_params",
]
