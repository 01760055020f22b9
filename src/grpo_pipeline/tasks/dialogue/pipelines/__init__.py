"""Wire the dialogue task for Kedro: data, preparation, report, prediction."""

from grpo_pipeline.tasks.dialogue.pipelines.pipeline import (
    adapt_preparation,
    create_pipeline,
    create_preparation,
)
from grpo_pipeline.tasks.dialogue.pipelines.prediction import create_prediction
from grpo_pipeline.tasks.dialogue.pipelines.report import create_report

__all__ = [
    "adapt_preparation",
    "create_pipeline",
    "create_prediction",
    "create_preparation",
    "create_report",
]
