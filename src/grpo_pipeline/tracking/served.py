"""Write models that MLflow can load and serve: a folder with weights, code, signature and requirements, no pickle."""

import base64
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from grpo_pipeline.core.storage.files import read_header
from grpo_pipeline.core.storage.weights import HEADER

PACKAGE = Path(__file__).resolve().parents[1]
CODE = {"attention": Path(__file__).with_name("attention_pyfunc.py")}
"""Task -> the file that MLflow executes to load a model of it."""
REQUIREMENTS = ("mlflow", "numpy", "pandas", "pillow", "pydantic", "safetensors", "scipy", "torch", "tqdm", "transformers")
# Without these a model reads no NIfTI, DICOM or MetaImage file; a serving environment that reads none does not need them.
FORMATS = ("nibabel", "pydicom", "SimpleITK")
EXAMPLE_SIDE = 32


def can_be_served(model: Path) -> bool:
    """Return whether a model's folder holds all that is needed to use it alone, and its task has code for MLflow."""
    if not (model / HEADER).is_file():
        return False
    config = read_header(model / HEADER).get("config", {})
    return config.get("task") in CODE and {"preprocessing", "calibration"} <= config.keys()


def save_served(model: Path, target: Path) -> None:
    """Write a model as a folder that ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` take.

    Requirements are given with their versions, so that MLflow neither imports the model to guess them nor asks an index.

    Args:
        model: folder of the weights, as ``attention.<arm>.model`` writes it.
        target: folder to write; must not exist.

    Raises:
        ValueError: if the model cannot be used alone.
    """
    if not can_be_served(model):
        raise ValueError(
            f"{model} must be a model with preprocessing and calibration, got one that cannot be used alone; train again"
        )
    import mlflow.pyfunc

    config = read_header(model / HEADER)["config"]
    with quiet_mlflow():
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(CODE[config["task"]]),
            artifacts={"model": str(model)},
            code_paths=[str(PACKAGE)],
            signature=signature(config["preprocessing"]["clinical"]),
            input_example=example(),
            pip_requirements=requirements(),
            metadata={
                "task": config["task"],
                "calibration": config["calibration"]["method"],
                "optional_requirements": [*FORMATS],
            },
        )


def requirements() -> list[str]:
    """Return what the model needs, in the versions that are installed; a build such as +cpu is on no public index."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS]


def signature(clinical: list[str]) -> Any:
    """Return the columns of a request and of its answer, and the parameters with their defaults."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    masks = [ColSpec("string", name, required=False) for name in ("region_mask", "bag_mask")]
    numbers = [ColSpec("double", name, required=False) for name in clinical]
    # Each is null where there is no value.
    answers = [ColSpec("double", name, required=False) for name in ("prob", "prob_calibrated", "involvement", "distance")]
    doubts = [ColSpec("boolean", "outside", required=False), ColSpec("string", "outside_why", required=False)]
    points = ColSpec(Array(Array(Array("double"))), "points")
    wishes = [ParamSpec(name, "boolean", False) for name in ("heatmap", "abstain")]
    return ModelSignature(
        inputs=Schema([ColSpec("string", "image"), *masks, *numbers]),
        outputs=Schema([*answers, *doubts, points, ColSpec("string", "heatmap", required=False)]),
        params=ParamSchema([ParamSpec("seed", "long", 0), ParamSpec("sets", "long", 8), *wishes]),
    )


def example() -> pd.DataFrame:
    """Return a request with one small grey image inside of it, of no patient."""
    levels = np.add.outer(np.arange(EXAMPLE_SIDE), np.arange(EXAMPLE_SIDE)).astype(np.uint8) * 4
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, format="PNG")
    return pd.DataFrame({"image": [base64.b64encode(buffer.getvalue()).decode("ascii")]})


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Keep MLflow's remarks about hints that the code does not need off the terminal; errors are raised all the same."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
