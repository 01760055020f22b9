"""Declare the parameters of a data set: its columns, the meaning of its labels, handling of bad rows."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from grpo_pipeline.tasks.attention.data.cell_values import canonical_value
from grpo_pipeline.tasks.attention.data.column_params import ColumnParams, FolderParams
from grpo_pipeline.tasks.attention.data.label_params import LabelParams
from grpo_pipeline.tasks.attention.data.preprocessing_params import (
    MaskValues,
    ModelPreprocessing,
    Preprocessing,
)
from grpo_pipeline.tasks.attention.data.table_columns import ASKED

GradeValue = Annotated[str, BeforeValidator(lambda value: canonical_value(str(value)))]
Millimetres = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DataParams(Preprocessing):
    """How the manifest is read and checked (docs/attention/data.md).

    Attributes:
        source: ``phantom`` generates the data first; ``manifest`` reads an existing data set, ``case_folders`` one with a folder
            per case. The columns of images and masks are then names of files in that folder, with ``*`` for several. Other
            columns are fields of its ``info.json``.
        root: the data root; it is set through ``attention_root`` in globals.yml or on the command line.
        columns: the manifest's columns.
        folders: prefixes of the paths.
        label: the label rule.
        involvement_unit: ``fraction`` (0 to 1) or ``percent`` (0 to 100) in the manifest.
        on_bad_row: ``fail`` stops at the end of the checks; ``quarantine`` goes on without the bad rows and lists them.
        spacing_mm: row and column spacing of images whose file does not state it; null = unknown.
        grade_values: cell of the grade column -> grade group, ``{benign: 0, GG1: 1}``; null = cells are the numbers 0 to 5.
        reader_values: cell of the reader's score -> number, ``{"4a": 4.1, "4b": 4.2}``; null = cells are numbers.
        splits_file: JSON file below the root that names the cores of train, val and test; null = a column, or drawn.
    """

    source: Literal["phantom", "manifest", "case_folders"]
    root: str
    columns: ColumnParams
    folders: FolderParams
    label: LabelParams
    involvement_unit: Literal["fraction", "percent"]
    on_bad_row: Literal["fail", "quarantine"]
    spacing_mm: tuple[Millimetres, Millimetres] | None = None
    grade_values: dict[GradeValue, Annotated[int, Field(ge=0, le=5)]] | None = None
    reader_values: dict[GradeValue, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    splits_file: Annotated[str, Field(min_length=1)] | None = None

    def for_model(self, *, image_size: int, clinical: tuple[str, ...]) -> ModelPreprocessing:
        """Select the preprocessing that a model trained on these data, with these clinical columns, must store."""
        kept = {name: getattr(self, name) for name in Preprocessing.model_fields}
        columns, folders = (
            {name: getattr(section, name) for name in ASKED}
            for section in (self.columns, self.folders)
        )
        return ModelPreprocessing(
            **kept | {"image_size": image_size, "clinical": clinical},
            columns={
                name: column for name, column in columns.items() if column not in (None, name)
            },
            folders={name: folder for name, folder in folders.items() if folder},
        )

    @property
    def names_splits(self) -> bool:
        """Check whether the data set itself names the split of each core."""
        return self.columns.split is not None or self.splits_file is not None

    @model_validator(mode="after")
    def _splits_have_one_source(self) -> Self:
        if self.columns.split is not None and self.splits_file is not None:
            raise ValueError(
                f"attention.data.columns.split must be null with splits_file: {self.splits_file}, got {self.columns.split!r}; "
                "keep one of them"
            )
        return self

    @model_validator(mode="after")
    def _values_have_a_column(self) -> Self:
        if self.grade_values is not None and self.columns.grade_group is None:
            raise ValueError(
                "attention.data.grade_values must be null while columns.grade_group is null, got a table; map the column"
            )
        if self.reader_values is not None and self.columns.reader_score is None:
            raise ValueError(
                "attention.data.reader_values must be null while columns.reader_score is null, got a table; map the column"
            )
        for name in MaskValues.model_fields:
            if (values := getattr(self.mask_values, name)) and getattr(self.columns, name) is None:
                raise ValueError(
                    f"attention.data.mask_values.{name} must be null while columns.{name} is null, got "
                    f"[{', '.join(f'{value:g}' for value in values)}]; map the column"
                )
        return self
