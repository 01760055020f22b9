"""Parameters of a prediction for images of the user's own (``attention.predict``)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.attention.data.params import ColumnName, Millimetres


class PredictColumns(BaseModel):
    """Names of the manifest's columns; all but the image may be null, or absent from the manifest.

    Attributes:
        image: path of the image.
        core_id: unique name of the row; without it, the image's file name without its ending, or the folder of the case.
        patient_id: the patient, for a score per patient.
        region_mask: path of the mask of where points may fall; without it, the whole image.
        bag_mask: path of the mask in which the involvement is estimated; without it, there is no estimate.
        frame: name of the frame or view in its core, for a score per frame beside that of the core.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image: ColumnName
    core_id: ColumnName | None
    patient_id: ColumnName | None
    region_mask: ColumnName | None
    bag_mask: ColumnName | None
    frame: ColumnName | None = None


class PredictFolders(BaseModel):
    """Folders, below the data root, that are put before the paths of a column.

    Attributes:
        image: before the paths of the images.
        region_mask: before those of the region masks.
        bag_mask: before those of the bag masks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image: str
    region_mask: str
    bag_mask: str


class PredictParams(BaseModel):
    """Which model scores which images.

    Attributes:
        arm: whose newest model it is.
        root: the data root as configured; set through ``attention_predict_root`` in globals.yml or on the command line.
        manifest: name of the CSV below the root, set in the same two ways.
        columns: the manifest's columns; clinical ones have the names that the model was trained with.
        folders: prefixes of the paths.
        spacing_mm: row and column spacing of images whose file does not tell it; null = unknown.
        on_bad_row: ``fail`` stops before anything is scored; ``quarantine`` goes on without the bad rows and lists them.
        seed: of the points.
        n_samples: point sets per core; their mean is the score, the first one is drawn.
        abstain: whether an image unlike those of the training gets no probability, beside being marked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    root: str
    manifest: str
    columns: PredictColumns
    folders: PredictFolders
    spacing_mm: tuple[Millimetres, Millimetres] | None = None
    on_bad_row: Literal["fail", "quarantine"]
    seed: Annotated[int, Field(ge=0)]
    n_samples: Annotated[int, Field(ge=1, le=1000)]
    abstain: bool
