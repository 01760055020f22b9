"""Synthetic results for the tests of evaluation and reporting, and workers that start at once."""

import pytest
from forked_kedro import ForkedWorkers
from synthetic_results import arms, metric_rows, params, predictions, showcase

__all__ = ["arms", "metric_rows", "params", "predictions", "showcase"]


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be forks; that a real one starts, tests/runs/test_executor.py and a run of an environment with them test."""
    monkeypatch.setattr("grpo_pipeline.runs.worker.subprocess", ForkedWorkers)
