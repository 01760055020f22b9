"""Parameters of a prediction for images of the user's own (``attention.predict``)."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.attention.data.params import ColumnName, ColumnParams, FolderParams


class PredictColumns(BaseModel):
    """Names of the columns that a prediction reads; all but the image may be None, or absent from the manifest.

    Attributes:
        image: path of the image.
        core_id: unique name of the row; without it, the image's file name without its ending, or the folder of the case.
        patient_id: the patient, for a score per patient.
        region_mask: path of the mask of where points may fall; without it, the whole image.
        bag_mask: path of the mask in which the involvement is estimated; without it, there is no estimate.
        frame: name of the frame or view in its core, for a score per frame beside that of the core.
    """

    model_config = ConfigDict(frozen=True)

    image: ColumnName
    core_id: ColumnName | None
    patient_id: ColumnName | None
    region_mask: ColumnName | None
    bag_mask: ColumnName | None
    frame: ColumnName | None = None

    @classmethod
    def of(cls, columns: ColumnParams) -> Self:
        """Take those of a training's data; the labels are left out."""
        return cls(**{name: getattr(columns, name) for name in cls.model_fields})


class PredictFolders(BaseModel):
    """Folders, below the data root, that are put before the paths of a column.

    Attributes:
        image: before the paths of the images.
        region_mask: before those of the region masks.
        bag_mask: before those of the bag masks.
    """

    model_config = ConfigDict(frozen=True)

    image: str = ""
    region_mask: str = ""
    bag_mask: str = ""

    @classmethod
    def of(cls, folders: FolderParams) -> Self:
        """Take those of a training's data."""
        return cls(**{name: getattr(folders, name) for name in cls.model_fields})


class PredictParams(BaseModel):
    """Which model scores which images; columns, folders and spacing are those of ``attention.data``.

    Attributes:
        arm: whose newest model it is.
        root: the data root as configured; set through ``attention_predict_root`` in globals.yml or on the command line.
        manifest: name of the CSV below the root, set in the same two ways.
        on_bad_row: ``fail`` stops before anything is scored; ``quarantine`` goes on without the bad rows and lists them.
        seed: of the points.
        n_samples: point sets per core; their mean is the score, the first one is drawn.
        abstain: whether an image unlike those of the training gets no probability, beside being marked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    root: str
    manifest: str
    on_bad_row: Literal["fail", "quarantine"]
    seed: Annotated[int, Field(ge=0)]
    n_samples: Annotated[int, Field(ge=1, le=1000)]
    abstain: bool
