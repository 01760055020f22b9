"""Warn while training runs about what does nothing."""

import logging
from typing import Any

from kedro.framework.hooks import hook_impl

from grpo_pipeline.runs.dead_coefficients import DeadCoefficients


class WatchHooks:
    """Warn while training runs about what does nothing."""

    def __init__(self) -> None:
        self._dead = DeadCoefficients()

    @hook_impl
    def before_pipeline_run(self) -> None:
        """Start counting anew."""
        self._dead = DeadCoefficients()

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Read the metric rows of an arm."""
        if dataset_name.endswith(".metric_rows"):
            for sentence in self._dead.read(dataset_name.removesuffix(".metric_rows"), data):
                logging.getLogger(__name__).warning(sentence)
