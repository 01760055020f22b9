"""Predict with a trained arm of the molecule task: sizes and a count -> molecules."""

from typing import Any

import pandas as pd
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.tasks.molecules.params import PredictParams
from grpo_pipeline.tasks.trained_arms import TrainedArms, version_of


def draw_sizes(params: PredictParams, models: TrainedArms) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Draw molecules of each size; returns a row per molecule, and a report on the model.

    Raises:
        FileNotFoundError: if the arm has no model.
        ValueError: if a size is larger than every training molecule, or a wanted property is not among those of the prompts.
    """
    # Needs RDKit, which the registry opens without.
    from grpo_pipeline.tasks.molecules.exported_model import read_exported
    from grpo_pipeline.tasks.molecules.prompt_answers import answer

    folder = models.find(params.arm, parameter="molecules.predict.arm")
    model = read_exported(folder)
    if unknown := sorted(set(params.targets) - set(model.scales.names)):
        raise ValueError(
            f"molecules.predict.targets must name properties of the model's prompts, {list(model.scales.names)}, got "
            f"{unknown[0]!r}; remove it"
        )
    asked = pd.DataFrame({"size": params.sizes}).assign(count=params.count, **params.targets)
    drawn = answer(model, asked, seed=params.seed)
    valid = int(drawn["is_valid"].sum())
    report = params.model_dump(mode="json") | {
        "rows": len(drawn),
        "scored": len(drawn),
        "quarantined": 0,
        "model": version_of(folder),
        "absent_columns": [],
        "notes": [
            f"{valid} of {len(drawn)} molecules are valid; cause says why the others are not"
        ],
    }
    return drawn.drop(columns="row"), report


def create_prediction() -> Pipeline:
    """Draw molecules of the sizes of ``molecules.predict`` with the newest model of an arm."""
    return Pipeline(
        [
            Node(
                draw_sizes,
                inputs=["params:molecules.predict", "molecules.predict.models"],
                outputs=["molecules.predict.samples", "molecules.predict.report"],
                name="draw_sizes",
                namespace="molecules.predict",
            )
        ],
        tags=["molecules", "predict"],
    )
