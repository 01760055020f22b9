"""Data of the molecule task."""

from grpo_pipeline.pipelines.data.molecules.pipeline import create_pipeline

__all__ = ["create_pipeline"]
