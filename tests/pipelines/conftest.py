"""Synthetic results for the tests of evaluation and reporting."""

from synthetic_results import arms, metric_rows, params, predictions, showcase

__all__ = ["arms", "metric_rows", "params", "predictions", "showcase"]
