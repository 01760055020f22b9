"""Data of the dialogue task."""

from grpo_pipeline.pipelines.data.dialogue.pipeline import create_pipeline

__all__ = ["create_pipeline"]
