"""Figures, tables and one HTML page."""

from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline

__all__ = ["create_pipeline"]
