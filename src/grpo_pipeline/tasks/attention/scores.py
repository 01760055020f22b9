"""Tables of predictions: one row per core, per patient and per point."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.predictor import CorePrediction

SCORE_COLUMNS = (
    "core_id", "patient_id", "prob", "prob_calibrated", "prob_mean", "prob_std", "involvement", "outside",
    "outside_why", "distance", "n_points", "n_sets", "height", "width", "spacing_row_mm", "spacing_column_mm", "heatmap",
)  # fmt: skip
POINT_COLUMNS = ("core_id", "set", "point", "x", "y", "x_mm", "y_mm")
PATIENT_COLUMNS = ("patient_id", "cores", "outside", "prob", "prob_calibrated", "core_id")


def score_row(prediction: CorePrediction, *, heatmap: str) -> dict[str, Any]:
    """Return the row of one core: the verdict of the first set, mean and standard deviation (n in its denominator) of all.

    ``outside``, ``outside_why`` and ``distance`` are empty for a model that cannot doubt.

    Args:
        prediction: of the core.
        heatmap: name of its files.
    """
    row_mm, column_mm = prediction.spacing_mm or (np.nan, np.nan)
    n_sets, n_points = len(prediction.points), int(np.isfinite(prediction.points[0]).all(-1).sum())
    judgement = prediction.judgement
    doubt = (None, "", np.nan) if judgement is None else (judgement.is_outside, judgement.why, judgement.distance)
    values = (
        prediction.core_id, prediction.patient_id, float(prediction.probs[0]), float(prediction.calibrated[0]),
        float(prediction.probs.mean()), float(prediction.probs.std()), prediction.involvement, *doubt,
        n_points, n_sets, *prediction.image.shape, row_mm, column_mm, heatmap,
    )  # fmt: skip
    return dict(zip(SCORE_COLUMNS, values, strict=True))


def point_rows(prediction: CorePrediction) -> pd.DataFrame:
    """Return one row per point: x and y in pixels, and in millimetres from the image's top left corner where they are known."""
    n_sets, n_points = prediction.points.shape[:2]
    row_mm, column_mm = prediction.spacing_mm or (np.nan, np.nan)
    x, y = prediction.points.reshape(-1, 2).T
    numbers = {"set": np.repeat(np.arange(n_sets), n_points), "point": np.tile(np.arange(n_points), n_sets)}
    places = {"x": x, "y": y, "x_mm": x * column_mm, "y_mm": y * row_mm}
    table = pd.DataFrame({"core_id": prediction.core_id, **numbers, **places}, columns=list(POINT_COLUMNS))
    return table[table["x"].notna()].reset_index(drop=True)


def patient_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per patient: the highest score of its cores, as the evaluation has it, and which core that is.

    Cores of an unknown patient belong to none. A core without a score counts in ``cores`` and ``outside`` alone; a patient
    without any score has none, and names no core.
    """
    known = scores[scores["patient_id"] != ""]
    by_patient = known.assign(outside=known["outside"].astype("boolean").astype("Int64")).groupby("patient_id", sort=True)
    highest = known.sort_values("prob", ascending=False, kind="stable", na_position="last").drop_duplicates("patient_id")
    table = highest.sort_values("patient_id").set_index("patient_id", drop=False)
    table["core_id"] = table["core_id"].where(table["prob"].notna(), "")
    # A count of nothing known is nothing, not 0.
    table = table.assign(cores=by_patient.size(), outside=by_patient["outside"].sum(min_count=1))
    return table[list(PATIENT_COLUMNS)].reset_index(drop=True)


def score_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the scores as a table with its columns in their order."""
    return pd.DataFrame(list(rows), columns=list(SCORE_COLUMNS))
