"""Wire the molecule task for Kedro: data, preparation, report, prediction."""

from grpo_pipeline.tasks.molecules.pipelines.pipeline import create_pipeline, create_preparation
from grpo_pipeline.tasks.molecules.pipelines.prediction import create_prediction
from grpo_pipeline.tasks.molecules.pipelines.report import create_report

__all__ = ["create_pipeline", "create_prediction", "create_preparation", "create_report"]
