"""Held-out scores, controls and paired differences with intervals."""

from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.pipeline import create_pipeline

__all__ = ["EvaluationParams", "create_pipeline"]
