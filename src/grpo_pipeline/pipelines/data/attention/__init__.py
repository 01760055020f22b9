"""The Kedro side of the attention task: data, preparation, report, prediction."""

from grpo_pipeline.pipelines.data.attention.kit import adapt_kit
from grpo_pipeline.pipelines.data.attention.pipeline import create_pipeline
from grpo_pipeline.pipelines.data.attention.preparation import create_pipeline as create_preparation
from grpo_pipeline.pipelines.data.attention.report import create_report
from grpo_pipeline.pipelines.inference.pipeline import create_pipeline as create_prediction

__all__ = ["adapt_kit", "create_pipeline", "create_prediction", "create_preparation", "create_report"]
