"""Declare the names of a manifest's columns, and the folders of its files."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.attention.data.table_columns import (
    CANONICAL_COLUMNS,
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    FRAME_COLUMN,
    MODEL_SPACING_COLUMNS,
    READER_COLUMN,
    SIZE_COLUMN,
    SPACING_COLUMN,
)
from grpo_pipeline.tasks.text_lines import composed

ColumnName = Annotated[str, Field(min_length=1), AfterValidator(composed)]


class ColumnParams(BaseModel):
    """Names of the manifest's columns; null where the data set has no such column.

    Attributes:
        image: path of the image.
        region_mask: path of the mask of where points may fall; null = the whole image.
        bag_mask: path of the mask of where the label is known; null = the region.
        lesion_mask: path of the lesion outline (evaluation only); null, or an empty cell = unknown.
        label: column that the label rule reads.
        involvement: share of the core that is cancer; null = unknown.
        grade_group: grade group 0 to 5; null = unknown.
        patient_id: the group that is never split (a patient, or near-duplicate images).
        center: hospital or scanner; null = one center.
        core_id: unique name of the row; null = the image's file name without its ending, of a folder per case the folder's name.
        split: train, val or test; null = drawn by the ``attention.split`` parameters.
        clinical: numeric columns, may hold unknown values.
        reader_score: a person's score, such as PI-RADS or BI-RADS, higher for more suspicion; null = none. The model never sees
            it: it is compared with.
        frame: name of the frame or view, unique in its core, which then may have several rows; null = one picture a core.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image: ColumnName
    region_mask: ColumnName | None
    bag_mask: ColumnName | None
    lesion_mask: ColumnName | None
    label: ColumnName
    involvement: ColumnName | None
    grade_group: ColumnName | None
    patient_id: ColumnName
    center: ColumnName | None
    core_id: ColumnName | None
    split: ColumnName | None
    clinical: tuple[ColumnName, ...]
    reader_score: ColumnName | None = None
    frame: ColumnName | None = None

    @model_validator(mode="after")
    def _reader_is_not_shown(self) -> Self:
        if self.reader_score in self.clinical:
            raise ValueError(
                f"attention.data.columns.reader_score must not be among the clinical columns, which the model sees, got "
                f"{self.reader_score!r} in both; drop it from clinical"
            )
        return self

    @model_validator(mode="after")
    def _clinical_names_are_free(self) -> Self:
        taken = sorted(
            set(self.clinical)
            & {
                *CANONICAL_COLUMNS,
                READER_COLUMN,
                CLASS_COLUMN,
                FINDINGS_COLUMN,
                FRAME_COLUMN,
                SIZE_COLUMN,
                SPACING_COLUMN,
                *MODEL_SPACING_COLUMNS,
            }
        )
        if taken:
            raise ValueError(
                f"attention.data.columns.clinical must not use the table's own column names, got {taken}; rename them"
            )
        if len(set(self.clinical)) < len(self.clinical):
            raise ValueError(
                f"attention.data.columns.clinical must name each column once, got {list(self.clinical)}; drop the copies"
            )
        return self

    def mapped(self) -> dict[str, str]:
        """Return parameter path -> column name for every column that the manifest must have."""
        named = {
            name: getattr(self, name) for name in type(self).model_fields if name != "clinical"
        }
        single = {
            f"attention.data.columns.{name}": column
            for name, column in named.items()
            if column is not None
        }
        return single | {
            f"attention.data.columns.clinical[{i}]": column
            for i, column in enumerate(self.clinical)
        }


class FolderParams(BaseModel):
    """Folders below the data root in front of the paths of a column; "" if the manifest has whole paths.

    Attributes:
        image: before the paths of the images.
        region_mask: before those of the region masks.
        bag_mask: before those of the bag masks.
        lesion_mask: before those of the lesion masks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    image: str
    region_mask: str
    bag_mask: str
    lesion_mask: str
