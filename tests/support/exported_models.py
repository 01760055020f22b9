"""Exported models of every task, far from their start and never trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_predictor
from tiny import tiny
from tiny_attention import export

from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing


def export_models(root: Path, *names: str, prompt_column: str = "question", **changes: Any) -> dict[str, Path]:
    """Write a model of each task, or of those that are named; returns task -> folder of an arm with one version of its model.

    Args:
        root: where to.
        names: of tasks; none for all.
        prompt_column: what the data of the dialogue task called a question.
        changes: of the preprocessing of attention's images.
    """
    names = names or ("attention", "dialogue", "molecules")
    for name in names:
        kit = tiny(name)
        task = kit.make_task()
        if name == "attention":
            task = replace(task, preprocessing=ModelPreprocessing.model_validate(tiny_predictor.preprocessing(**changes)))
        if name == "dialogue":
            task = replace(task, prompt_column=prompt_column)
        data = kit.make_data(task) if name == "dialogue" else kit.make_data()
        export(root / name / "grpo/model/2026-01-01T00.00.00.000Z/model", kit, task, data, tiny_predictor.CALIBRATION)
    return {name: root / name / "grpo" for name in names}
