"""Nodes of the evaluation pipeline."""

import subprocess
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.evaluation.comparison import compare
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.suites import build_suite


def compare_arms(params: EvaluationParams, commit: str, **predictions: pd.DataFrame) -> dict[str, Any]:
    """Compare the arms on the held-out split; one keyword argument per arm, its prediction rows.

    Returns:
        The comparison document of docs/metrics.md: values with intervals, paired differences, verdict.

    Raises:
        ValueError: if the predictions do not belong together or the control is missing.
    """
    return compare(predictions, params, suite=build_suite(params.task, params.metric_options), commit=commit)


def read_commit() -> str:
    """Return the git commit of the code that runs, or "unknown" outside a repository or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"
