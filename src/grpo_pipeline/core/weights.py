"""Final weights for use elsewhere: a folder with ``model.safetensors`` and ``model.json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from grpo_pipeline.core.atomic import find_complete, replacing_folder
from grpo_pipeline.core.tensorfiles import CorruptFolderError, read_tensors, write_tensors

HEADER = "model.json"


@dataclass(frozen=True)
class ModelWeights:
    """Weights and the configuration that builds the module they fit.

    Attributes:
        tensors: name -> tensor, on the CPU.
        config: JSON values.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]


def weights_of(module: nn.Module, config: Mapping[str, Any]) -> ModelWeights:
    """Copy a module's weights; later training does not change the copy."""
    return ModelWeights({name: t.detach().to("cpu", copy=True) for name, t in module.state_dict().items()}, dict(config))


def save_weights(folder: Path, weights: ModelWeights) -> None:
    """Write weights and configuration atomically; raises OSError if the disk refuses it."""
    with replacing_folder(folder) as partial:
        write_tensors(partial, {"model": weights.tensors}, HEADER, {"config": dict(weights.config)})


def load_weights(folder: Path) -> ModelWeights:
    """Read what ``save_weights`` wrote.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
    """
    found = find_complete(folder)
    if found is None:
        raise FileNotFoundError(f"weights {folder} must exist, got nothing there; train first or correct the path")
    tensors, header = read_tensors(found, HEADER)
    if "model" not in tensors or "config" not in header:
        raise CorruptFolderError(f"{found} must hold model.safetensors and a config, got {sorted(tensors)}")
    return ModelWeights(tensors["model"], header["config"])
