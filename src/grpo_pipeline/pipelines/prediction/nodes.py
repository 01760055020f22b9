"""Nodes of the prediction pipeline: check the manifest, score core by core, make tables and one sheet."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.prediction.heatmap_files import HeatmapFiles
from grpo_pipeline.pipelines.prediction.overlay import draw_overlay, shrink
from grpo_pipeline.pipelines.prediction.sheet import draw_sheet
from grpo_pipeline.progress import track
from grpo_pipeline.tasks.attention.data_params import DataParams, Preprocessing
from grpo_pipeline.tasks.attention.file_names import file_names
from grpo_pipeline.tasks.attention.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.nifti_frame import heatmap_volume, is_nifti
from grpo_pipeline.tasks.attention.predict_manifest import check_predict_manifest
from grpo_pipeline.tasks.attention.predict_params import PredictParams
from grpo_pipeline.tasks.attention.predictor import CorePrediction, Predictor, build_predictor
from grpo_pipeline.tasks.attention.scores import POINT_COLUMNS, patient_table, point_rows, score_row, score_table
from grpo_pipeline.tasks.familiarity import FALSE_ALARMS
from grpo_pipeline.tasks.trained import TrainedArms, version_of

SHEET_CORES = 12


@dataclass
class Predicted:
    """Scores of the images that a model was applied to: no heatmaps, but thumbnails of the first few.

    Attributes:
        rows: of the scores.
        points: of each core.
        thumbnails: small overlays of the first cores, uint8 [h, w, 3].
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    points: list[pd.DataFrame] = field(default_factory=list)
    thumbnails: list[np.ndarray] = field(default_factory=list)

    def add(self, prediction: CorePrediction, files: HeatmapFiles) -> None:
        """Keep a core."""
        self.rows.append(score_row(prediction, heatmap=files.name))
        self.points.append(point_rows(prediction))
        if len(self.thumbnails) < SHEET_CORES:
            self.thumbnails.append(shrink(files.overlay))


def load_predictor(predict: PredictParams, models: TrainedArms) -> Predictor:
    """Build the arm's newest model from what is stored with it; refuse to abstain with one that cannot doubt."""
    predictor = build_predictor(models.load(predict.arm, parameter="attention.predict.arm"), name=predict.arm)
    predictor.check_abstain(predict.abstain, name="attention.predict.abstain")
    return predictor


def check_cores(
    predict: PredictParams, data: DataParams, raw: ImageFolder, models: TrainedArms, predictor: Predictor
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Check every row and its files; see ``tasks.attention.predict_manifest.check_predict_manifest``.

    Returns:
        the usable cores, the refused rows, and what was read with what.
    """
    checked, quarantine, absent = check_predict_manifest(raw, predict, predictor.rules)
    reading = {
        "arm": predict.arm,
        "model": version_of(models.find(predict.arm, parameter="attention.predict.arm")),
        "root": str(raw.root),
        "manifest": raw.manifest_path.name,
        "rows": len(raw.manifest),
        "scored": len(checked),
        "quarantined": len(quarantine),
        "absent_columns": list(absent),
        "seed": predict.seed,
        "sets": predict.sets,
        "preprocessing": predictor.preprocessing.model_dump(mode="json"),
        "calibration": predictor.calibration.model_dump(mode="json"),
        "inputs": None if predictor.familiarity is None else predictor.familiarity.told.model_dump(mode="json"),
        "abstain": predict.abstain,
        "notes": list(notes(data, predictor)),
    }
    return checked, quarantine, reading


def notes(data: DataParams, predictor: Predictor) -> Iterator[str]:
    """Yield what a reader of the scores must know: no calibration, and preprocessing that is not that of the parameters."""
    if predictor.calibration.method == "none":
        yield f"prob_calibrated is empty: the model has no calibration ({predictor.calibration.reason})"
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
    records = [dict(zip(checked.columns, cells, strict=True)) for cells in checked.itertuples(index=False, name=None)]
    names = file_names([str(row["core_id"]) for row in records])
    kept = Predicted()
    for number, row in enumerate(track(records, "score cores")):
        prediction = predictor.predict(raw, row, seed=predict.seed, sets=predict.sets, abstain=predict.abstain)
        path = str(row["image"])
        files = HeatmapFiles(
            name=names[number],
            overlay=draw_overlay(prediction.image, prediction.heatmap, prediction.points[0]),
            heatmap=prediction.heatmap,
            volume=None if prediction.heatmap is None or not is_nifti(path) else heatmap_volume(raw, path, prediction.heatmap),
            spacing_mm=prediction.spacing_mm,
            is_first=number == 0,
            is_last=number == len(records) - 1,
        )
        kept.add(prediction, files)
        yield files, kept


def tabulate(
    predicted: Predicted, reading: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, Figure, dict[str, Any]]:
    """Return scores per core, scores per patient, the points, a sheet of the first cores, and the report on all of it."""
    outside = sum(row["outside"] is True for row in predicted.rows)
    rule = "get no score" if reading["abstain"] else "have a score not to rely on"
    told = [f"{outside} of {len(predicted.rows)} images are unlike those of the training and {rule}: outside_why in scores.csv"]
    report = reading | {"outside": outside if reading["inputs"] else None, "notes": [*told * bool(outside), *reading["notes"]]}
    scores = score_table(predicted.rows)
    points = pd.concat(predicted.points, ignore_index=True)[list(POINT_COLUMNS)]
    return scores, patient_table(scores), points, draw_sheet(predicted.rows, predicted.thumbnails), report
