"""Synthetic results for the pictures of the task's page."""

from synthetic_results import arms, params, predictions, showcase

__all__ = ["arms", "params", "predictions", "showcase"]
