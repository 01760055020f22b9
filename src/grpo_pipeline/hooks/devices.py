"""Refuse a run on a device that is not there."""

from collections.abc import Mapping
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline

from grpo_pipeline.runs.devices import check_devices


class DeviceHooks:
    """Refuse a run on a device that is not there."""

    def __init__(self) -> None:
        self._parameters: Mapping[str, Any] = {}

    @hook_impl
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Keep the parameters."""
        self._parameters = parameters["parameters"]

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Look for the device of each task, before anything is locked, read or tracked."""
        check_devices(pipeline, self._parameters)
