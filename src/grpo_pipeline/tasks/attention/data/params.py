"""Declare the parameters of a data set: places of its columns, meaning of its labels, handling of bad rows."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.params import SplitFractions
from grpo_pipeline.tasks.text_lines import composed

CANONICAL_COLUMNS = (
    "core_id", "patient_id", "center", "label", "involvement", "grade_group", "image", "region_mask", "bag_mask", "lesion_mask",
    "has_lesion_mask", "row", "split",
)  # fmt: skip

PATHS = ("image", "region_mask", "bag_mask", "lesion_mask")
"""Columns that name files."""
ASKED = PATHS[:3]
"""Those that a trained model reads."""
READER_COLUMN = "reader_score"
"""Score of a person who has read the image: present where a column of the manifest is mapped to it."""
CLASS_COLUMN = "class"
"""Number of the row's class, from 0 in the order as written: present where ``attention.data.label`` has classes."""
FINDINGS_COLUMN = "findings"
"""The row's findings, bit c for the class with number c: in the place of ``class`` where a row may have several."""
BETWEEN_FINDINGS = ";"
"""Between the values of a cell that names several findings."""
MOST_FINDINGS = 53
"""A float64 holds so many bits exactly: a table that is read back as numbers loses none."""
FRAME_COLUMN = "frame"
"""Name of a picture inside its core: present where a core may have several, each a row and an example of its own."""
SIZE_COLUMN, SPACING_COLUMN = "stored_size", "spacing_mm"
"""Rows and columns of the image as it is stored, and the distances between them: present where any spacing is known."""
MODEL_SPACING_COLUMNS = ("row_mm", "column_mm")
"""Millimetres per pixel of the square model image."""


def as_text(value: object) -> object:
    """Write a number or a truth value of a YAML list as a CSV would hold it; other values stay unchanged."""
    return str(value) if isinstance(value, bool | int | float) else value


ColumnName = Annotated[str, Field(min_length=1), AfterValidator(composed)]
LabelValue = Annotated[str, BeforeValidator(as_text)]
GradeValue = Annotated[str, BeforeValidator(lambda value: canonical_value(str(value)))]
Millimetres = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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


NO_CLASS_NAMES = frozenset({"mean", "std", "shift", "calibrated"})
"""Not names of classes: ``prob_<name>`` is another column."""
ClassName = Annotated[
    str, BeforeValidator(as_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=40)
]


class Classes(BaseModel):
    """The classes of a model, stored with it.

    Attributes:
        names: in the order as written; a class is known by its number in it.
        positive: those with label 1.
        ordinal: whether the order is one of severity; the positive ones are then the last.
        several: whether an image may have several of them, or none: findings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[ClassName, ...]
    positive: tuple[ClassName, ...]
    ordinal: bool = False
    several: bool = Field(default=False, exclude_if=lambda is_on: not is_on)

    @property
    def is_positive(self) -> tuple[bool, ...]:
        """List whether each class has label 1."""
        return tuple(name in self.positive for name in self.names)

    @property
    def column(self) -> str:
        """Name the column of a table that holds the class of a row, or its findings."""
        return FINDINGS_COLUMN if self.several else CLASS_COLUMN

    def is_of(self, value: Any, number: int) -> Any:
        """Check whether a value of that column means the class with this number, for an integer, an array or a column."""
        return (value & (1 << number)) > 0 if self.several else value == number

    def label_of(self, value: int) -> int:
        """Find the label of a value of that column: 1 for a positive class."""
        positive = [number for number, label in enumerate(self.is_positive) if label]
        return int(any(self.is_of(value, number) for number in positive))


class LabelParams(BaseModel):
    """The values of the label column that mean cancer: those of a list or of some classes, or numbers above a limit.

    Attributes:
        positive: values with label 1, with ``classes`` their names; null with ``above``.
        negative: values with label 0, every other value being an error; null = every other value has label 0.
        above: numbers above this have label 1, other numbers label 0; null with ``positive``.
        classes: name -> values of that class, ``{normal: [0], benign: [1], malignant: [2]}``. The model tells them apart; the
            ``positive`` classes have label 1. null = two classes, by the lists or the limit.
        ordinal: whether the classes are grades, written from the lowest to the highest (cumulative logits, one for each step).
        several: whether the classes are findings, of which a row may have several, ``cyst; calcified``, or none. Rows with any
            ``positive`` finding have label 1.
        none: values of rows without findings; null = every row has a finding.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    positive: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None
    negative: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    classes: dict[ClassName, Annotated[tuple[LabelValue, ...], Field(min_length=1)]] | None = None
    ordinal: bool = False
    several: bool = Field(default=False, exclude_if=lambda is_on: not is_on)
    none: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None = Field(
        default=None, exclude_if=lambda values: values is None
    )

    @property
    def scheme(self) -> Classes | None:
        """Build the classes that a model tells apart; None if there is a label alone."""
        if self.classes is None:
            return None
        return Classes(
            names=tuple(self.classes),
            positive=self.positive or (),
            ordinal=self.ordinal,
            several=self.several,
        )

    @model_validator(mode="after")
    def _classes_are_sound(self) -> Self:
        if self.classes is None:
            if self.ordinal:
                raise ValueError(
                    "attention.data.label.ordinal must be false without classes, got true; name the grades in label.classes"
                )
            if self.several:
                raise ValueError(
                    "attention.data.label.several must be false without classes, got true; name the findings in label.classes"
                )
            return self
        names, positive = list(self.classes), self.positive or ()
        where, values = (
            "attention.data.label",
            [*map(canonical_value, sum(self.classes.values(), ()))],
        )
        if self.several:  # a value may mean several findings, each of them once
            lists = [list(map(canonical_value, of_one)) for of_one in self.classes.values()]
            twice = sorted({value for one in lists for value in one if one.count(value) > 1})
        else:
            twice = sorted({value for value in values if values.count(value) > 1})
        of_highest = names[len(names) - len(positive) :]
        for is_broken, rule in (
            (
                self.ordinal and self.several,
                f"{where}.several must be false with ordinal: true, got true for both; an image has one grade: set one of them",
            ),
            (
                len(names) < 2,
                f"{where}.classes must name at least two classes, got {names}; add one",
            ),
            (
                bool(set(names) & NO_CLASS_NAMES),
                f"{where}.classes must not be named {sorted(NO_CLASS_NAMES)}, got {names}; rename it",
            ),
            (
                bool(twice),
                f"{where}.classes must list a value once, got {twice} twice; drop one, since a row has one class",
            ),
            (
                not positive
                or not set(positive) <= set(names)
                or (set(positive) == set(names) and not self.several),
                f"{where}.positive must name some of the classes {names}, not all, got {list(positive)}; correct it",
            ),
            (
                self.negative is not None or self.above is not None,
                f"{where} must have negative and above null with classes, got negative: {self.negative} and above: "
                f"{self.above}; set both to null: the classes that are not positive are negative",
            ),
            (
                self.ordinal and set(positive) != set(of_highest),
                f"{where}.positive must be the highest grades with ordinal: true, such as {of_highest}, got {list(positive)}; "
                "write the classes from the lowest to the highest",
            ),
        ):
            if is_broken:
                raise ValueError(rule)
        return self

    @model_validator(mode="after")
    def _findings_are_sound(self) -> Self:
        where, none = "attention.data.label", [*map(canonical_value, self.none or ())]
        if not self.several:
            if self.none is not None:
                raise ValueError(
                    f"{where}.none must be null without several: true, got {list(self.none)}; a class of its own says it"
                )
            return self
        names, values = (
            list(self.classes or ()),
            [*map(canonical_value, sum((self.classes or {}).values(), ()))],
        )
        both = sorted(set(none) & set(values))
        joined = [value for value in (*values, *none) if BETWEEN_FINDINGS in value]
        for is_broken, rule in (
            (
                len(names) > MOST_FINDINGS,
                f"{where}.classes must name at most {MOST_FINDINGS} findings with several: true, got {len(names)}; drop some",
            ),
            (
                bool(both),
                f"{where}.none must list no value of a finding, got {both} as both; drop one",
            ),
            (
                bool(joined),
                f"{where} must list values without {BETWEEN_FINDINGS!r} with several: true, got {joined}; a cell is "
                "divided there: list its parts",
            ),
            (
                set(self.positive or ()) == set(names) and not none,
                f"{where}.none must list the values that mean no finding where all of them are positive, got null; no row would "
                "have label 0",
            ),
        ):
            if is_broken:
                raise ValueError(rule)
        return self

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        lists = [name for name in ("positive", "negative") if getattr(self, name) is not None]
        if self.above is not None and lists:
            raise ValueError(
                f"attention.data.label must have {' and '.join(lists)} null with above: {self.above:g}, got a list; set one rule"
            )
        if self.above is None and self.positive is None:
            raise ValueError(
                "attention.data.label must have positive or above, got null for both; say which values mean cancer"
            )
        return self

    @model_validator(mode="after")
    def _values_are_disjoint(self) -> Self:
        if self.positive is None:
            return self
        both = sorted(
            set(map(canonical_value, self.positive))
            & set(map(canonical_value, self.negative or ()))
        )
        if both:
            raise ValueError(
                f"attention.data.label must list a value as positive or negative, got {both} as both; drop one"
            )
        return self


class VolumeParams(BaseModel):
    """The plane of a file with more than one slice; masks are taken at the same plane.

    Attributes:
        axis: axis of the slices in the canonical orientation (docs/attention/data.md): 0 slice or frame, 1 row, 2 column.
        take: the ``middle`` slice, a projection of all of them, the slice ``index``, or several ``frames``, each an example.
        index: the slice that ``index`` takes, counted from 0; null with every other ``take``.
        frames: the slices that ``frames`` takes: ``all``, ``every 5`` (0, 5, 10, ...), or a list of them, counted from 0; null
            with every other ``take``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    axis: Literal[0, 1, 2]
    take: Literal["middle", "max_projection", "mean_projection", "index", "frames"]
    index: Annotated[int, Field(ge=0)] | None = None
    frames: (
        Literal["all"]
        | Annotated[str, Field(pattern=r"^every [1-9][0-9]*$")]
        | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
        | None
    ) = Field(default=None, exclude_if=lambda frames: frames is None)

    @model_validator(mode="after")
    def _index_belongs_to_take(self) -> Self:
        for name, kind in (("index", "a number"), ("frames", "all, every <n> or a list")):
            value = getattr(self, name)
            if (self.take == name) != (value is not None):
                rule = (
                    f"{kind} with take: {name}"
                    if self.take == name
                    else f"null with take: {self.take}"
                )
                raise ValueError(
                    f"attention.data.volume.{name} must be {rule}, got {value}; correct one of them"
                )
        if isinstance(self.frames, tuple) and len(set(self.frames)) < len(self.frames):
            raise ValueError(
                f"attention.data.volume.frames must name each frame once, got {list(self.frames)}; drop the copies"
            )
        return self


class AggregateParams(BaseModel):
    """How the probabilities of parts are aggregated.

    Attributes:
        core: from the frames of a core to the core: their ``mean``, or their ``max``.
        patient: from the cores of a patient to the patient: their ``max``, or their ``mean``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    core: Literal["mean", "max"] = "mean"
    patient: Literal["mean", "max"] = "max"


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


class SplitParams(BaseModel):
    """How the groups are divided.

    Attributes:
        seed: fixes which group goes where.
        fractions: wanted shares of the groups in train, val and test; they add up to 1.
        single_class: what a val or test split with one class only means; in train it is always an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)]
    fractions: SplitFractions
    single_class: Literal["error", "allow"]


def canonical_value(text: str) -> str:
    """Normalise a label value for comparison: no case or outer blanks; 1, 1.0 and 01 are equal."""
    folded = composed(text.strip()).casefold()
    try:
        return f"{float(folded):.15g}"
    except ValueError:
        return folded


class AugmentationParams(BaseModel):
    """How a training image is changed each time it is shown (``attention.augmentation``); the defaults change nothing.

    Attributes:
        horizontal_flip: probability of exchanging left and right.
        rotation_degrees: the image turns about its centre by a uniform angle up to this, either way.
        translation: largest shift along x and along y, as a share of the image side.
        scale: lowest and highest factor of its size; 1 leaves it unchanged.
        gain: the grey levels are multiplied by a uniform factor in 1 -+ gain.
        gamma: the grey levels (on a scale from 0 to 1) are raised to a power e^u, u uniform in -+ gamma.
        speckle: standard deviation of normal noise that multiplies every pixel, around 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    horizontal_flip: float = Field(default=0.0, ge=0, le=1)
    rotation_degrees: float = Field(default=0.0, ge=0, le=180)
    translation: float = Field(default=0.0, ge=0, lt=0.5)
    scale: tuple[float, float] = (1.0, 1.0)
    gain: float = Field(default=0.0, ge=0, lt=1)
    gamma: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    speckle: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def moves(self) -> bool:
        """Check whether pixels change their place."""
        amounts = (self.horizontal_flip, self.rotation_degrees, self.translation)
        return any(amounts) or self.scale != (1.0, 1.0)

    @property
    def recolours(self) -> bool:
        """Check whether grey levels change."""
        return bool(self.gain or self.gamma or self.speckle)

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        low, high = self.scale
        if not 0.1 <= low <= high <= 10:
            raise ValueError(
                f"scale must be [lowest, highest] with 0.1 <= lowest <= highest <= 10, got [{low}, {high}]; correct it"
            )
        return self
