"""Read an exported attention model from its folder alone."""

from pathlib import Path

from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.attention.inference.predictor import Predictor, build_predictor


def read_exported(folder: Path) -> Predictor:
    """Read a model that an arm of the attention task has left; it predicts cores of an ``ImageFolder``.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if it is no attention model, or says nothing of its preprocessing and calibration.
    """
    return build_predictor(load_weights(folder), name=str(folder))
