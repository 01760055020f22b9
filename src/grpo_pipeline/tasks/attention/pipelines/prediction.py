"""Prediction of the attention task: a trained arm and a manifest without labels -> scores, points and heatmaps, core by core."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node, Pipeline
from matplotlib.figure import Figure

from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.data.core_frames import picture_names
from grpo_pipeline.tasks.attention.data.file_naming import file_names
from grpo_pipeline.tasks.attention.data.formats.nifti_heatmap import heatmap_volume, is_nifti
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.preprocessing_params import Preprocessing
from grpo_pipeline.tasks.attention.inference.manifest import check_predict_manifest
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.inference.predictor import (
    CorePrediction,
    Predictor,
    build_predictor,
)
from grpo_pipeline.tasks.attention.inference.score_tables import (
    POINT_COLUMNS,
    core_scores,
    frame_table,
    patient_table,
    point_rows,
    score_row,
    score_table,
    with_frame,
)
from grpo_pipeline.tasks.attention.pipelines.core_sheet import SHEET_CORES, draw_sheet
from grpo_pipeline.tasks.attention.pipelines.image_folder import HeatmapFiles
from grpo_pipeline.tasks.attention.pipelines.image_overlay import draw_overlay, shrink
from grpo_pipeline.tasks.familiarity import FALSE_ALARMS
from grpo_pipeline.tasks.trained_arms import TrainedArms, version_of


@dataclass
class Predicted:
    """Scores of the images that a model was applied to: no heatmaps, but thumbnails of the first few.

    Attributes:
        rows: of the scores of each picture.
        probs: P(cancer) of its point sets, [E].
        points: of each picture.
        thumbnails: small overlays of the first cores, uint8 [h, w, 3].
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    probs: list[np.ndarray] = field(default_factory=list)
    points: list[pd.DataFrame] = field(default_factory=list)
    thumbnails: list[np.ndarray] = field(default_factory=list)

    def add(self, prediction: CorePrediction, files: HeatmapFiles) -> None:
        """Keep a core."""
        self.rows.append(score_row(prediction, heatmap=files.name))
        self.probs.append(prediction.probs)
        self.points.append(point_rows(prediction))
        if len(self.thumbnails) < SHEET_CORES:
            self.thumbnails.append(shrink(files.overlay))


def load_predictor(predict: PredictParams, models: TrainedArms) -> Predictor:
    """Build the arm's newest model from what is stored with it; refuse to abstain with one that cannot doubt."""
    predictor = build_predictor(
        models.load(predict.arm, parameter="attention.predict.arm"), name=predict.arm
    )
    predictor.check_abstain(predict.abstain, name="attention.predict.abstain")
    return predictor


def check_cores(
    predict: PredictParams,
    data: DataParams,
    raw: ImageFolder,
    models: TrainedArms,
    predictor: Predictor,
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Check every row and its files; see ``tasks.attention.inference.manifest.check_predict_manifest``.

    Returns:
        the usable cores, the refused rows, and what was read with what.
    """
    checked, quarantine, absent = check_predict_manifest(raw, predict, data, predictor.rules)
    reading = {
        "arm": predict.arm,
        "model": version_of(models.find(predict.arm, parameter="attention.predict.arm")),
        "root": str(raw.root),
        "manifest": raw.manifest_path.name,
        "rows": len(checked) + len(quarantine),
        "scored": len(checked),
        "quarantined": len(quarantine),
        "absent_columns": list(absent),
        "seed": predict.seed,
        "n_samples": predict.n_samples,
        "preprocessing": predictor.preprocessing.model_dump(mode="json"),
        "calibration": predictor.calibration.model_dump(mode="json"),
        "inputs": None
        if predictor.familiarity is None
        else predictor.familiarity.told.model_dump(mode="json"),
        "abstain": predict.abstain,
        "notes": list(notes(data, predictor, n_samples=predict.n_samples)),
    }
    return checked, quarantine, reading


def notes(data: DataParams, predictor: Predictor, *, n_samples: int) -> Iterator[str]:
    """Yield what a reader of the scores must know.

    That is no calibration, or one of another number of point sets; and preprocessing that is not that of the parameters.
    """
    fitted = predictor.calibration.n_samples
    if predictor.calibration.method == "none":
        yield f"prob_calibrated is empty: the model has no calibration ({predictor.calibration.reason})"
    elif fitted == 1:
        yield (
            "prob_calibrated is the mean over the point sets, since the model's calibration was fitted on single ones; train "
            "again for one of the mean"
        )
    elif fitted != n_samples:
        yield (
            f"prob is the mean of {n_samples} point sets, and the model's calibration was fitted on that of {fitted}: set "
            f"attention.predict.n_samples to {fitted}"
        )
    yield from doubt_notes(predictor)
    for name in Preprocessing.model_fields:
        own, configured = getattr(predictor.preprocessing, name), getattr(data, name)
        if own != configured:
            yield f"{name}: the model was trained with {shown(own)}, which counts; attention.data.{name} is {shown(configured)}"


def doubt_notes(predictor: Predictor) -> Iterator[str]:
    """Yield why images unlike those of the training are not marked, or why more ordinary ones are than there should be."""
    if predictor.familiarity is None:
        yield "outside is empty: the model does not know what its training images looked like and cannot doubt; train again"
        return
    told = predictor.familiarity.told
    if told.limit is None:
        yield "outside is empty: the model was trained without validation images and cannot doubt"
    elif told.false_alarms is not None and told.false_alarms > FALSE_ALARMS:
        yield (
            f"outside was fitted on {told.held_out} validation images of {told.clusters} patients: of ordinary images up to "
            f"{told.false_alarms:.3f} are expected to be marked"
        )


def shown(value: Any) -> str:
    """Return a parameter as a person writes it."""
    return "null" if value is None else str(value)


def predict_cores(
    predict: PredictParams, raw: ImageFolder, checked: pd.DataFrame, predictor: Predictor
) -> Iterator[tuple[HeatmapFiles, Predicted]]:
    """Score core by core; yields the pictures of each with what is kept of all so far, so that no two heatmaps are in memory."""
    records = [
        dict(zip(checked.columns, cells, strict=True))
        for cells in checked.itertuples(index=False, name=None)
    ]
    names = file_names(picture_names(checked).astype(str).tolist())
    kept = Predicted()
    for number, row in enumerate(track(records, "score cores")):
        prediction = predictor.predict(
            raw, row, seed=predict.seed, n_samples=predict.n_samples, abstain=predict.abstain
        )
        path = str(row["image"])
        files = HeatmapFiles(
            name=names[number],
            overlay=draw_overlay(prediction.image, prediction.heatmap, prediction.points[0]),
            heatmap=prediction.heatmap,
            volume=None
            if prediction.heatmap is None or not is_nifti(path)
            else heatmap_volume(raw, path, prediction.heatmap),
            spacing_mm=prediction.spacing_mm,
            is_first=number == 0,
            is_last=number == len(records) - 1,
        )
        kept.add(prediction, files)
        yield files, kept


def tabulate(
    predicted: Predicted, reading: dict[str, Any], predictor: Predictor
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, Figure, dict[str, Any]]:
    """Return scores per core, per frame and per patient, the points, a sheet of the first pictures, and the report on all."""
    outside = sum(row["outside"] is True for row in predicted.rows)
    rule = "get no score" if reading["abstain"] else "have a score not to rely on"
    frames = frame_table(predicted.rows)
    told = [
        f"{outside} of {len(predicted.rows)} images are unlike those of the training and {rule}: outside_why in "
        f"{'frames' if len(frames) else 'scores'}.csv"
    ]
    report = reading | {
        "outside": outside if reading["inputs"] else None,
        "notes": [*told * bool(outside), *reading["notes"]],
    }
    rules, calibration = predictor.preprocessing.aggregate, predictor.calibration
    classes = predictor.task.classes
    scores = score_table(core_scores(predicted.rows, predicted.probs, calibration, rules, classes))
    points = pd.concat(predicted.points, ignore_index=True)
    columns = with_frame(POINT_COLUMNS, is_named=len(frames) > 0)
    return (
        scores,
        frames,
        patient_table(scores, calibration if rules.patient == "mean" else None),
        points[columns],
        draw_sheet(predicted.rows, predicted.thumbnails),
        report,
    )


def prediction_params(
    root: Path, table: Path, options: Mapping[str, int], columns: Mapping[str, str]
) -> dict[str, Any]:
    """Describe the prediction of a manifest as parameters of the task; bad rows are listed, and stop nothing.

    Args:
        root: folder to which paths in the manifest are relative.
        table: the manifest; one that the command has made of a folder has the column ``image`` alone.
        options: ``sets``, ``seed`` and ``abstain``, those that are given.
        columns: name in the manifest -> key of ``attention.data.columns``.
    """
    names = {"sets": "n_samples", "seed": "seed", "abstain": "abstain"}
    given = {name: options[option] for option, name in names.items() if option in options}
    if "abstain" in given:
        given["abstain"] = bool(given["abstain"])
    named = {key: column for column, key in columns.items()}
    data: dict[str, Any] = {"columns": named} if named else {}
    if table.parent != root:
        data = {"columns": {"image": "image"}, "folders": {"image": ""}}
    place = {"root": str(root), "manifest": str(table), "on_bad_row": "quarantine"}
    return {"predict": {**place, **given}, "data": data}


def create_prediction() -> Pipeline:
    """Score the images of ``attention.predict.raw`` with the newest model of an arm; no labels are read."""
    params = "params:attention.predict"
    return Pipeline(
        [
            Node(
                load_predictor,
                inputs=[params, "attention.predict.models"],
                outputs="attention.predict.predictor",
                name="load_predictor",
                namespace="attention.predict",
            ),
            Node(
                check_cores,
                inputs=[
                    params,
                    "params:attention.data",
                    "attention.predict.raw",
                    "attention.predict.models",
                    "attention.predict.predictor",
                ],
                outputs=[
                    "attention.predict.checked",
                    "attention.predict.quarantine",
                    "attention.predict.reading",
                ],
                name="check_cores",
                namespace="attention.predict",
            ),
            Node(
                predict_cores,
                inputs=[
                    params,
                    "attention.predict.raw",
                    "attention.predict.checked",
                    "attention.predict.predictor",
                ],
                outputs=["attention.predict.heatmaps", "attention.predict.predicted"],
                name="predict_cores",
                namespace="attention.predict",
            ),
            Node(
                tabulate,
                inputs=[
                    "attention.predict.predicted",
                    "attention.predict.reading",
                    "attention.predict.predictor",
                ],
                outputs=[
                    "attention.predict.scores",
                    "attention.predict.frames",
                    "attention.predict.patients",
                    "attention.predict.points",
                    "attention.predict.sheet",
                    "attention.predict.report",
                ],
                name="tabulate_scores",
                namespace="attention.predict",
            ),
        ],
        tags=["attention", "predict"],
    )
