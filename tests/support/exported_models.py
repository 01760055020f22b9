"""Exported models of every task, far from their start and never trained."""

from dataclasses import replace
from pathlib import Path

import tiny_predictor
from tiny import tiny
from tiny_attention import export

from grpo_pipeline.tasks.attention.data.params import ModelPreprocessing


def export_models(root: Path) -> dict[str, Path]:
    """Write a model of every task; returns task -> folder of an arm with one version of its model."""
    for name in ("attention", "dialogue", "molecules"):
        kit = tiny(name)
        task = kit.make_task()
        if name == "attention":
            task = replace(task, preprocessing=ModelPreprocessing.model_validate(tiny_predictor.preprocessing()))
        data = kit.make_data(task) if name == "dialogue" else kit.make_data()
        export(root / name / "grpo/model/2026-01-01T00.00.00.000Z/model", kit, task, data, tiny_predictor.CALIBRATION)
    return {name: root / name / "grpo" for name in ("attention", "dialogue", "molecules")}
