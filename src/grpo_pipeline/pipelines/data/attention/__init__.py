"""Data of the attention task."""

from grpo_pipeline.pipelines.data.attention.pipeline import create_pipeline

__all__ = ["create_pipeline"]
