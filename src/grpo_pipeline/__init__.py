"""Hybrid supervised + GRPO learning as a Kedro project."""

import sys

from grpo_pipeline.runs.moved import MovedNames

__version__ = "0.1.0"

sys.meta_path.append(MovedNames())
