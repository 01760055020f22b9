"""Hybrid supervised + GRPO learning as a Kedro project."""

__version__ = "0.1.0"
