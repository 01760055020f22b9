"""Use an exported attention model: read it from its folder alone, and let it answer requests of a server."""

import base64
import io
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.attention.data.params import Classes
from grpo_pipeline.tasks.attention.inference.predictor import Predictor, build_predictor
from grpo_pipeline.tasks.attention.inference.request import answer
from grpo_pipeline.tasks.attention.model.class_scores import class_columns
from grpo_pipeline.tasks.exported import Column, Serving

ROOT_VARIABLE = "GRPO_IMAGE_ROOT"
EXAMPLE_SIDE = 32


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
    """Score every row (``inference.request.answer``); paths lie below ``GRPO_IMAGE_ROOT``, else below the current folder."""
    root = Path(os.environ.get(ROOT_VARIABLE) or ".")
    return answer(predictor, table, root=root, n_samples=sets, with_heatmap=heatmap, **options)


def request_columns(config: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a request: the image, its masks, and what the model was trained with beside it."""
    optional = [Column(name, "string") for name in ("region_mask", "bag_mask")]
    return [
        Column("image", "string", True),
        *optional,
        *(Column(n, "double") for n in config["preprocessing"]["clinical"]),
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
    load=partial(build_predictor, name="in MLflow"),
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
)
