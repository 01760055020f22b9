"""Columns and folders of a manifest that a prediction reads: those of the training's data, without the labels."""

from typing import Self

from pydantic import BaseModel, ConfigDict

from grpo_pipeline.tasks.attention.data.column_params import ColumnName, ColumnParams, FolderParams


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
