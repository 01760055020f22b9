"""The Kedro side of the attention task: data, preparation, report, prediction."""

from grpo_pipeline.pipelines.compare.kits import attention_kit as create_kit
from grpo_pipeline.pipelines.data.attention.pipeline import create_pipeline
from grpo_pipeline.pipelines.data.attention.report import create_report
from grpo_pipeline.pipelines.prediction.pipeline import create_pipeline as create_prediction
from grpo_pipeline.pipelines.training.attention import create_pipeline as create_preparation

__all__ = ["create_kit", "create_pipeline", "create_prediction", "create_preparation", "create_report"]
