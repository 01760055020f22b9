"""Tables of predictions: a row per core, per frame of a core, per patient and per point."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN
from grpo_pipeline.tasks.attention.inference.calibration import Calibration
from grpo_pipeline.tasks.attention.inference.predictor import CorePrediction
from grpo_pipeline.tasks.attention.inference.set_logits import combine_logits

SCORE_COLUMNS = (
    "core_id", "patient_id", "prob", "prob_calibrated", "prob_std", "involvement", "outside", "outside_why", "distance",
    "n_points", "n_sets", "height", "width", "spacing_row_mm", "spacing_column_mm", "heatmap",
)  # fmt: skip
POINT_COLUMNS = ("core_id", "set", "point", "x", "y", "x_mm", "y_mm")
PATIENT_COLUMNS = ("patient_id", "cores", "outside", "prob", "prob_calibrated", "core_id")


def score_row(prediction: CorePrediction, *, heatmap: str) -> dict[str, Any]:
    """Return the row of one core: mean and standard deviation (n in its denominator) over the point sets, and their number.

    ``n_points`` are those of the first set.
    ``outside``, ``outside_why`` and ``distance`` are empty for a model that cannot doubt.

    Args:
        prediction: of the core.
        heatmap: name of its files.
    """
    row_mm, column_mm = prediction.spacing_mm or (np.nan, np.nan)
    n_sets, n_points = len(prediction.points), int(np.isfinite(prediction.points[0]).all(-1).sum())
    judgement = prediction.judgement
    doubt = (
        (None, "", np.nan)
        if judgement is None
        else (judgement.is_outside, judgement.why, judgement.distance)
    )
    values = (
        prediction.core_id, prediction.patient_id, prediction.prob, prediction.calibrated,
        float(prediction.probs.std()), prediction.involvement, *doubt,
        n_points, n_sets, *prediction.image.shape, row_mm, column_mm, heatmap,
    )  # fmt: skip
    named = {FRAME_COLUMN: prediction.frame} if prediction.frame else {}
    return dict(zip(SCORE_COLUMNS, values, strict=True)) | named | dict(prediction.classes)


def core_scores(
    frames: Sequence[dict[str, Any]],
    probs: Sequence[np.ndarray],
    calibration: Calibration,
    rules: AggregateParams,
    classes: Classes | None = None,
) -> list[dict[str, Any]]:
    """Return the scores of cores from those of their frames, in the order of the first ones; without frames, these as they are.

    Each point set's probability is combined over the frames before mean, standard deviation and calibration are taken, as the
    calibration was fitted. Frames without a score, withheld ones, count nothing. A core is outside where any of its frames is,
    and the farthest one says why; its size and spacing are those of its first frame, its heatmap is the one of its highest frame.

    Args:
        frames: of ``score_row``.
        probs: P(cancer) of each point set of each frame, [E].
        calibration: of the model.
        rules: mean or highest.
        classes: of the model. By the highest, a finding's probability is its own highest one, and those of classes are those of
            the frame that counts, so that they still add up to 1.
    """
    if not any(FRAME_COLUMN in row for row in frames):
        return list(frames)
    cores: dict[str, list[int]] = {}
    for number, row in enumerate(frames):
        cores.setdefault(row["core_id"], []).append(number)
    return [
        _core_score(
            [frames[i] for i in own], np.stack([probs[i] for i in own]), calibration, rules, classes
        )
        for own in cores.values()
    ]


def _core_score(
    frames: Sequence[dict[str, Any]],
    probs: np.ndarray,
    calibration: Calibration,
    rules: AggregateParams,
    classes: Classes | None,
) -> dict[str, Any]:
    """Combine the rows and the probabilities [F, E] of one core's frames."""
    table = pd.DataFrame(list(frames))
    scored = np.flatnonzero(~np.isnan(probs[:, 0]))
    combined, calibrated = np.full(probs.shape[1], np.nan), np.nan
    if len(scored):
        logits = combine_logits(logit(probs[scored]), np.zeros(len(scored), int), rules.core)[0]
        combined, calibrated = expit(logits), calibration.of_sets(logits)
    highest = int(scored[np.argmax(probs[scored].mean(axis=1))]) if len(scored) else 0
    far = 0 if table["distance"].isna().all() else int(np.nanargmax(table["distance"]))
    outside = table["outside"].dropna()
    of_each = classes is not None and classes.several
    chosen = scored if rules.core == "mean" or of_each else [highest]
    how = rules.core if of_each else "mean"
    of_classes = {
        name: float(table[name].iloc[chosen].agg(how)) for name in class_columns_of(frames)
    }
    return (
        frames[0]
        | of_classes
        | {
            "prob": float(combined.mean()),
            "prob_calibrated": calibrated,
            "prob_std": float(combined.std()),
            "involvement": float(table["involvement"].mean()),
            "outside": bool(outside.any()) if len(outside) else None,
            "outside_why": frames[far]["outside_why"],
            "distance": frames[far]["distance"],
            "n_points": int(table["n_points"].sum()),
            "heatmap": frames[highest]["heatmap"],
        }
    )


def point_rows(prediction: CorePrediction) -> pd.DataFrame:
    """Return one row per point: x and y in pixels, and in millimetres from the image's top left corner where they are known."""
    n_sets, n_points = prediction.points.shape[:2]
    row_mm, column_mm = prediction.spacing_mm or (np.nan, np.nan)
    x, y = prediction.points.reshape(-1, 2).T
    numbers = {
        "set": np.repeat(np.arange(n_sets), n_points),
        "point": np.tile(np.arange(n_points), n_sets),
    }
    places = {"x": x, "y": y, "x_mm": x * column_mm, "y_mm": y * row_mm}
    named = {FRAME_COLUMN: prediction.frame} if prediction.frame else {}
    table = pd.DataFrame(
        {"core_id": prediction.core_id, **named, **numbers, **places},
        columns=with_frame(POINT_COLUMNS, is_named=bool(named)),
    )
    return table[table["x"].notna()].reset_index(drop=True)


def with_frame(columns: Sequence[str], *, is_named: bool) -> list[str]:
    """Return the columns of a table, the frame behind the core where rows are frames of cores."""
    return [columns[0], FRAME_COLUMN, *columns[1:]] if is_named else list(columns)


def frame_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the scores of every frame; no row where cores have one picture each."""
    named = [row for row in rows if FRAME_COLUMN in row]
    columns = [*with_frame(SCORE_COLUMNS, is_named=True), *class_columns_of(named)]
    return pd.DataFrame(named, columns=columns)


def patient_table(scores: pd.DataFrame, calibrate_mean: Calibration | None = None) -> pd.DataFrame:
    """Return one row per patient: the highest score of its cores, as the evaluation has it, and which core that is.

    With a calibration it is the mean of the cores' probabilities instead, calibrated as theirs are; the core is the highest.

    Cores of an unknown patient belong to none. A core without a score counts in ``cores`` and ``outside`` alone; a patient
    without any score has none, and names no core.
    """
    known = scores[scores["patient_id"] != ""]
    by_patient = known.assign(outside=known["outside"].astype("boolean").astype("Int64")).groupby(
        "patient_id", sort=True
    )
    highest = known.sort_values(
        "prob", ascending=False, kind="stable", na_position="last"
    ).drop_duplicates("patient_id")
    table = highest.sort_values("patient_id").set_index("patient_id", drop=False)
    table["core_id"] = table["core_id"].where(table["prob"].notna(), "")
    # A count of nothing known is nothing, not 0.
    table = table.assign(cores=by_patient.size(), outside=by_patient["outside"].sum(min_count=1))
    if calibrate_mean is not None:
        table["prob"] = by_patient["prob"].mean()
        table["prob_calibrated"] = calibrate_mean.apply(logit(table["prob"].to_numpy(np.float64)))
    return table[list(PATIENT_COLUMNS)].reset_index(drop=True)


def score_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the scores as a table with its columns in their order, those of classes last."""
    return pd.DataFrame(list(rows), columns=[*SCORE_COLUMNS, *class_columns_of(rows)])


def class_columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of ``score_row`` that a model of classes adds."""
    known = (*SCORE_COLUMNS, FRAME_COLUMN)
    return [name for name in (rows[0] if rows else ()) if name not in known]
