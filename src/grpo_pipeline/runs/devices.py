"""Refuse a run on a missing device before its first node, so that no data are prepared in vain."""

from collections.abc import Iterator, Mapping
from typing import Any

from kedro.pipeline import Pipeline

from grpo_pipeline.tasks import TASKS

# Sections of a task that a pipeline reads where it trains or scores with a model; those of many trainings name their arms.
COMPUTING = ("training", "compare", "cross_validation")


def check_devices(pipeline: Pipeline, parameters: Mapping[str, Any]) -> None:
    """Refuse a pipeline that computes on a device that torch does not find.

    Args:
        pipeline: what is to be run.
        parameters: all of them.

    Raises:
        ValueError: naming the parameter and the device.
    """
    for path, device in devices(pipeline, parameters):
        if device != "auto":
            from grpo_pipeline.core.training.device import choose_device  # imports torch

            choose_device(device, path=path)


def devices(pipeline: Pipeline, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and value of ``<task>.training.device`` for each task that a pipeline computes for."""
    read = pipeline.inputs()
    for task in TASKS:
        if any(f"params:{task}.{section}" in read for section in COMPUTING):
            training = (parameters.get(task) or {}).get("training") or {}
            # Kedro passes a section as its model if the node declares it.
            given = training if isinstance(training, Mapping) else vars(training)
            yield f"{task}.training.device", str(given.get("device", "auto"))
