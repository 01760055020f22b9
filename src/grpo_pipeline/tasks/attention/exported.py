"""Use an exported attention model: read it from its folder alone, and answer a table of images as a server gets it.

It is scored with the code that scores a manifest. An image or a mask is a path below the server's data root, or the base64
text of a PNG or NPY file.
"""

import base64
import binascii
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.planes import IMAGE_SUFFIXES, Plane, split_values
from grpo_pipeline.tasks.attention.data.table_columns import ASKED
from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError
from grpo_pipeline.tasks.attention.inference.manifest import (
    CoreReading,
    CoreRules,
    check_cores,
    find_columns,
)
from grpo_pipeline.tasks.attention.inference.predictor import (
    CorePrediction,
    Predictor,
    build_predictor,
)
from grpo_pipeline.tasks.attention.inference.read_columns import PredictColumns, PredictFolders
from grpo_pipeline.tasks.attention.model.class_scores import class_columns
from grpo_pipeline.tasks.serving import Column, Serving

ROOT_VARIABLE = "GRPO_IMAGE_ROOT"
EXAMPLE_SIDE = 32
COLUMNS = PredictColumns(
    image="image", core_id=None, patient_id=None, region_mask="region_mask", bag_mask="bag_mask"
)
FOLDERS = PredictFolders()
# Base64 of the first bytes of a PNG and of an NPY file: no path that a person chose begins like that.
INLINE = {"iVBORw0KGgo": ".png", "k05VTVBZ": ".npy"}
LONGEST_PATH = 1024
MOST_ROWS, MOST_SETS, MOST_CHARACTERS = 256, 256, 128 * 2**20
"""What one request may ask for: rows, point sets per row, and characters of text in all its cells."""
LARGEST_SEED = 2**63 - 1
ANSWERS = ("prob", "prob_calibrated", "involvement", "outside", "outside_why", "distance", "points")
TOP = 65535
REQUEST = "request-"


@dataclass(frozen=True)
class RequestFolder(ImageFolder):
    """A data root in which the names in ``inline`` are files that came with the request."""

    inline: ImageFolder = field(kw_only=True)

    def read_plane(self, relpath: str, *, as_mask: bool) -> Plane:
        """Read an image or a mask from the request, or from the data root."""
        if relpath.startswith(REQUEST) and (self.inline.root / split_values(relpath)[0]).is_file():
            return self.inline.read_plane(relpath, as_mask=as_mask)
        return super().read_plane(relpath, as_mask=as_mask)


def answer(
    predictor: Predictor,
    table: pd.DataFrame,
    *,
    root: Path,
    seed: int,
    n_samples: int,
    with_heatmap: bool = False,
    abstain: bool = False,
) -> pd.DataFrame:
    """Score every row of a table; all of them, or none.

    Args:
        predictor: the model.
        table: column ``image``, and where there are any ``region_mask``, ``bag_mask`` and the model's clinical columns.
        root: folder below which paths must lie.
        seed: of the points.
        n_samples: point sets per row.
        with_heatmap: whether to return the heatmaps.
        abstain: whether a row unlike the training images gets no probability.

    Returns:
        ``prob, prob_calibrated, involvement, outside, outside_why, distance, points``, of a model of classes ``prob_<class>`` and
        with grades ``expected_class``, and on request ``heatmap``, in the order of the rows; None where there is no value, never
        NaN, which JSON does not know. ``points`` holds for each set a list of the [x, y] of its points, in pixels. ``heatmap`` is
        the base64 text of a 16-bit PNG, 65535 being probability 1.

    Raises:
        ValueError: if the request asks for too much, or naming the first row that cannot be scored, counted from 0.
    """
    check_limits(table, seed=seed, n_samples=n_samples)
    predictor.check_abstain(abstain, name="abstain")
    with TemporaryDirectory(prefix="grpo-request-") as folder:
        asked = records(table)
        cells = [
            request_cells(row, predictor.rules, folder=Path(folder), root=root, number=i)
            for i, row in enumerate(asked)
        ]
        if not cells:
            further = class_columns(predictor.task.classes)
            return pd.DataFrame(columns=[*ANSWERS, *further, *["heatmap"] * with_heatmap])
        # A data root with a manifest; its rows are counted from 0.
        manifest = pd.DataFrame(cells, dtype=str)
        inline = ImageFolder(Path(folder), manifest, Path(folder) / "request")
        raw = RequestFolder(root.absolute(), manifest, root / "request", inline=inline)
        reading = CoreReading(
            find_columns(raw.manifest.columns, COLUMNS, predictor.preprocessing.clinical),
            FOLDERS,
            workers=1,
        )
        rows, refused = check_cores(raw, reading, predictor.rules)
        if refused:
            first = min(refused, key=lambda entry: entry["row"])
            raise ValueError(f"row {first['row']} of the request: {first['reason']}")
        predictions = (
            predictor.predict(raw, row, seed=seed, n_samples=n_samples, abstain=abstain)
            for row in rows
        )
        # Of type object: in a column of numbers pandas would turn None into NaN.
        return pd.DataFrame(
            [answer_row(prediction, with_heatmap=with_heatmap) for prediction in predictions],
            dtype=object,
        )


def check_limits(table: pd.DataFrame, *, seed: int, n_samples: int) -> None:
    """Refuse a request that asks for more than a server should do at once."""
    if not 1 <= n_samples <= MOST_SETS:
        raise ValueError(f"sets must be from 1 to {MOST_SETS}, got {n_samples}; correct it")
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}; correct it")
    if len(table) > MOST_ROWS:
        raise ValueError(
            f"the request must have at most {MOST_ROWS} rows, got {len(table)}; send several requests"
        )
    characters = sum(
        len(cell) for column in table for cell in table[column] if isinstance(cell, str)
    )
    if characters > MOST_CHARACTERS:
        raise ValueError(
            f"the request must hold at most {MOST_CHARACTERS} characters of text, got {characters}; "
            "send several requests, or paths"
        )


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as mappings; refuse a table without images."""
    if "image" not in table.columns:
        raise ValueError(
            f"the request must have a column 'image', got {list(table.columns)}; add it"
        )
    return [
        dict(zip(table.columns, cells, strict=True))
        for cells in table.itertuples(index=False, name=None)
    ]


def request_cells(
    row: Mapping[str, Any], rules: CoreRules, *, folder: Path, root: Path, number: int
) -> dict[str, str]:
    """Return a row as the text that a manifest would hold; what came inside the request is written to ``folder``."""
    cells = {
        name: keep_inline(text(row.get(name)), name, folder=folder, number=number) for name in ASKED
    }
    for name, before in rules.preprocessing.folders.items():
        cells[name] = find_below(root, before, cells[name])
    if not cells["image"]:
        raise ValueError(
            f"row {number} of the request: image must be a path or a base64 text, got nothing; fill it in"
        )
    return cells | {name: text(row.get(name)) for name in rules.preprocessing.clinical}


def find_below(root: Path, folder: str, cell: str) -> str:
    """Put the folder of the training's paths before a path that is not there as it is written, and is there below it."""
    below = f"{folder.rstrip('/')}/{cell}"
    as_written = not cell or cell.startswith(REQUEST) or os.path.exists(root / cell)
    return cell if as_written or not os.path.exists(root / below) else below


def text(value: Any) -> str:
    """Return a cell as a manifest would hold it, "" for None and NaN."""
    return (
        ""
        if value is None or (isinstance(value, float) and np.isnan(value))
        else str(value).strip()
    )


def keep_inline(cell: str, name: str, *, folder: Path, number: int) -> str:
    """Return a path as it is; write the bytes of a base64 text to a file and return the name of that.

    Raises:
        ValueError: for a text that is neither.
    """
    suffix = next((ending for start, ending in INLINE.items() if cell.startswith(start)), None)
    if suffix is None:
        if len(cell) > LONGEST_PATH or "\n" in cell:
            raise ValueError(
                f"row {number} of the request: {name} must be a path or the base64 text of a PNG or NPY file, got {len(cell)} "
                f"characters that begin with {cell[:12]!r}; encode the bytes of the file"
            )
        return cell
    try:
        content = base64.b64decode(cell, validate=True)
    except binascii.Error as error:
        raise ValueError(
            f"row {number} of the request: {name} must be base64 text, got {error}; encode it again"
        ) from error
    file = f"{REQUEST}{number}-{name}{suffix}"
    (folder / file).write_bytes(content)
    return file


def answer_row(prediction: CorePrediction, *, with_heatmap: bool) -> dict[str, Any]:
    """Return the answer to one row."""
    judgement, heatmap = prediction.judgement, prediction.heatmap
    answered = {
        "prob": known(prediction.prob),
        "prob_calibrated": known(prediction.calibrated),
        "involvement": known(prediction.involvement),
        "outside": None if judgement is None else judgement.is_outside,
        "outside_why": None if judgement is None else judgement.why,
        "distance": None if judgement is None else judgement.distance,
        "points": [
            points[np.isfinite(points).all(axis=-1)].tolist() for points in prediction.points
        ],
        **{name: known(value) for name, value in prediction.classes.items()},
    }
    return answered | (
        {"heatmap": None if heatmap is None else encode_heatmap(heatmap)} if with_heatmap else {}
    )


def known(value: float) -> float | None:
    """Return a number, None for NaN."""
    return None if np.isnan(value) else float(value)


def encode_heatmap(heatmap: np.ndarray) -> str:
    """Return probabilities [H, W] as the base64 text of a 16-bit PNG."""
    buffer = io.BytesIO()
    Image.fromarray(np.round(np.clip(heatmap, 0, 1) * TOP).astype(np.uint16)).save(
        buffer, format="PNG"
    )
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def encode_file(path: Path) -> str:
    """Return the base64 text of a file, as a request holds it.

    Raises:
        UnreadableFileError: for a file that a request cannot hold.
    """
    encoded = base64.b64encode(path.read_bytes()).decode("ascii")
    if not encoded.startswith(tuple(INLINE)):
        raise UnreadableFileError(
            f"{path.name!r} must be a PNG or NPY file to be sent, got another kind; convert it or send its path"
        )
    return encoded


def read_exported(folder: Path) -> Predictor:
    """Read a model that an arm of the attention task has left; it predicts cores of an ``ImageFolder``.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if it is no attention model, or says nothing of its preprocessing and calibration.
    """
    return build_predictor(load_weights(folder), name=str(folder))


def answer_request(
    predictor: Predictor, table: pd.DataFrame, *, sets: int, heatmap: bool, **options: Any
) -> pd.DataFrame:
    """Score every row (``answer``); paths lie below ``GRPO_IMAGE_ROOT``, else below the current folder."""
    root = Path(os.environ.get(ROOT_VARIABLE) or ".")
    return answer(predictor, table, root=root, n_samples=sets, with_heatmap=heatmap, **options)


def request_columns(config: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a request: the image, its masks, and what the model was trained with beside it."""
    optional = [Column(name, "string") for name in ("region_mask", "bag_mask")]
    return [
        Column("image", "string", True),
        *optional,
        *(Column(name, "double") for name in config["preprocessing"]["clinical"]),
    ]


def answer_columns(config: Mapping[str, Any]) -> list[Column]:
    """Return the columns of an answer, each but the points null where there is no value; those of classes where it has them."""
    told = config.get("classes")
    classes = None if told is None else Classes.model_validate(told)
    numbers = ("prob", "prob_calibrated", "involvement", "distance")
    return [
        *(Column(name, "double") for name in (*numbers, *class_columns(classes))),
        Column("outside", "boolean"),
        Column("outside_why", "string"),
        Column("points", "double[][][]", True),
        Column("heatmap", "string"),
    ]


def example() -> pd.DataFrame:
    """Return a request with one small grey image inside of it, of no patient."""
    levels = np.add.outer(np.arange(EXAMPLE_SIDE), np.arange(EXAMPLE_SIDE)).astype(np.uint8) * 4
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, format="PNG")
    return pd.DataFrame({"image": [base64.b64encode(buffer.getvalue()).decode("ascii")]})


SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=request_columns,
    outputs=answer_columns,
    options={"seed": 0, "sets": 8, "heatmap": False, "abstain": False},
    example=example,
    needs=frozenset({"preprocessing", "calibration"}),
    requirements=(
        "mlflow",
        "numpy",
        "pandas",
        "pillow",
        "pydantic",
        "safetensors",
        "scipy",
        "torch",
        "tqdm",
        "transformers",
    ),
    # Without these a model reads no NIfTI, DICOM or MetaImage file; a serving environment that reads none does not need them.
    optional=("nibabel", "pydicom", "SimpleITK"),
    files={"image": IMAGE_SUFFIXES},
    names=lambda config: config["preprocessing"].get("columns", {}),
)
