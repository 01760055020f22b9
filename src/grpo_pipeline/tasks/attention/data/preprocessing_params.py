"""Declare the preprocessing of files, which a trained model stores."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.column_params import ColumnName
from grpo_pipeline.tasks.attention.data.volume_params import VolumeParams


class MaskValues(BaseModel):
    """The values of a mask's file that mean inside; null = the only value that it has beside 0.

    Attributes:
        region_mask: values of the area where points may fall.
        bag_mask: values of the area whose label is known.
        lesion_mask: values of the lesion.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    region_mask: Annotated[tuple[float, ...], Field(min_length=1)] | None = None
    bag_mask: Annotated[tuple[float, ...], Field(min_length=1)] | None = None
    lesion_mask: Annotated[tuple[float, ...], Field(min_length=1)] | None = None


class Preprocessing(BaseModel):
    """Steps that turn the files of a biopsy core into the model's input; a trained model stores them and accepts no others.

    Attributes:
        intensity: ``dtype`` reads grey levels by their type (8 bit, 16 bit, floats from 0 to 1); ``minmax`` stretches each image
            from its smallest to its largest value.
        empty_bag: meaning of an all-zero bag mask: an ``error``, or the whole ``region`` is the bag.
        image_size: side of the square model image in pixels.
        volume: the plane of a volume or a multi-frame file; null = a file with more than one slice is refused.
        mask_values: the values of the masks' files that mean inside; a mask with several values is refused until they are named.
        aggregate: how probabilities of frames are aggregated to their core, and those of cores to their patient.
        frame_sizes: ``one``: all frames of a core must have the same size; ``any``: they may differ.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    intensity: Literal["dtype", "minmax"]
    empty_bag: Literal["error", "region"]
    image_size: Annotated[int, Field(ge=16, le=2048)]
    volume: VolumeParams | None = None
    mask_values: MaskValues = MaskValues()
    # Options with their default are left out: a model with a picture per core keeps its earlier description.
    aggregate: AggregateParams = Field(
        default=AggregateParams(), exclude_if=lambda rules: rules == AggregateParams()
    )
    frame_sizes: Literal["one", "any"] = Field(
        default="one", exclude_if=lambda sizes: sizes == "one"
    )


class ModelPreprocessing(Preprocessing):
    """The preprocessing of a trained model, and how its data name what it reads.

    Attributes:
        clinical: the clinical columns.
        columns: ``image``, ``region_mask`` or ``bag_mask`` -> its column, where that has another name.
        folders: the same -> the folder in front of the paths of its column, where there is one.
    """

    clinical: tuple[ColumnName, ...]
    columns: dict[str, ColumnName] = Field(default={}, exclude_if=lambda columns: not columns)
    folders: dict[str, str] = Field(default={}, exclude_if=lambda folders: not folders)
