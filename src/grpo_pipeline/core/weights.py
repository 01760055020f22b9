"""Final weights for use elsewhere: a folder with ``model.safetensors`` and ``model.json``, and what else a model needs."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from grpo_pipeline.core.atomic import find_complete, replacing_folder
from grpo_pipeline.core.tensorfiles import CorruptFolderError, read_tensors, write_tensors

HEADER, TENSORS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class ModelWeights:
    """Weights and the configuration that builds the module they fit.

    Attributes:
        tensors: name -> tensor, on the CPU.
        config: JSON values.
        files: file name -> content of what belongs to the model beside them, such as a tokenizer.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def weights_of(module: nn.Module, config: Mapping[str, Any]) -> ModelWeights:
    """Copy a module's weights; later training does not change the copy."""
    return ModelWeights({name: t.detach().to("cpu", copy=True) for name, t in module.state_dict().items()}, dict(config))


def save_weights(folder: Path, weights: ModelWeights) -> None:
    """Write weights, configuration and files atomically.

    Raises:
        ValueError: if a file's name is a path, or that of the weights or of the header.
        OSError: if the disk refuses it.
    """
    for name in weights.files:
        if Path(name).name != name or name in (HEADER, TENSORS):
            raise ValueError(
                f"a file of a model must have a plain name other than {HEADER} and {TENSORS}, got {name!r}; rename it"
            )
    with replacing_folder(folder) as partial:
        for name, content in weights.files.items():
            (partial / name).write_bytes(content)
        sums = {"files": {name: _checksum(content) for name, content in weights.files.items()}} if weights.files else {}
        write_tensors(partial, {"model": weights.tensors}, HEADER, {"config": dict(weights.config), **sums})


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
    files = {name: _read_file(found / name, expected) for name, expected in header.get("files", {}).items()}
    return ModelWeights(tensors["model"], header["config"], files)


def _read_file(path: Path, expected: str) -> bytes:
    if not path.is_file() or _checksum(content := path.read_bytes()) != expected:
        raise CorruptFolderError(f"{path} must be the file with the check sum {expected} that the model was written with")
    return content


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"
