"""Write and read final weights: a folder with ``model.safetensors``, ``model.json`` and other files that a model needs."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.core.storage.tensor_folder import (
    CorruptFolderError,
    checksum,
    read_tensors,
    write_tensors,
)

HEADER, TENSORS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class ModelWeights:
    """Weights and the configuration that builds the module they fit.

    Attributes:
        tensors: name -> tensor, on the CPU.
        config: JSON values.
        folders: name -> function that writes a folder of this name beside the weights, such as the same model in the form of
            another library; empty in what was read from disk, where the folders are.
        beside: name -> tensors that are no weights but belong to the model, such as what its inputs were like; each in a file.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    folders: Mapping[str, Callable[[Path], None]] = field(
        default_factory=dict, repr=False, compare=False
    )
    beside: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False)


def weights_of(module: nn.Module, config: Mapping[str, Any]) -> ModelWeights:
    """Copy a module's weights; later training does not change the copy."""
    return ModelWeights(
        {name: t.detach().to("cpu", copy=True) for name, t in module.state_dict().items()},
        dict(config),
    )


def without_deleted(described: Mapping[str, Any], deleted: Mapping[str, Any]) -> dict[str, Any]:
    """Drop deleted fields of an older model's description where the model did without them.

    Args:
        described: field -> value; a deleted field with another value stays, and whoever reads the description refuses it.
        deleted: field -> the value that did without it.
    """
    return {
        name: value for name, value in described.items() if (name, value) not in deleted.items()
    }


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and bits of tensors, wherever they lie."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}\0".encode())
        digest.update(
            tensors[name]
            .detach()
            .cpu()
            .contiguous()
            .reshape(-1)
            .view(torch.uint8)
            .numpy()
            .tobytes()
        )
    return digest.hexdigest()


def save_weights(folder: Path, weights: ModelWeights) -> None:
    """Write weights, configuration and folders atomically.

    Raises:
        ValueError: if a folder's name is a path, or that of the weights or of the header.
        OSError: if the disk refuses it.
    """
    for name in weights.folders:
        if Path(name).name != name or name in (HEADER, TENSORS):
            raise ValueError(
                f"a folder of a model must have a plain name other than {HEADER} and {TENSORS}, got {name!r}; rename it"
            )
    with replacing_folder(folder) as partial:
        for name, write in weights.folders.items():
            (partial / name).mkdir()
            write(partial / name)
        files = sorted(
            path
            for name in weights.folders
            for path in (partial / name).rglob("*")
            if path.is_file()
        )
        sums = (
            {"files": {path.relative_to(partial).as_posix(): checksum(path) for path in files}}
            if files
            else {}
        )
        write_tensors(
            partial,
            {**weights.beside, "model": weights.tensors},
            HEADER,
            {"config": dict(weights.config), **sums},
        )


def load_weights(folder: Path) -> ModelWeights:
    """Read what ``save_weights`` wrote; files of folders are compared with their check sums and not read further.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
    """
    found = find_complete(folder)
    if found is None:
        raise FileNotFoundError(
            f"weights {folder} must exist, got nothing there; train first or correct the path"
        )
    tensors, header = read_tensors(found, HEADER)
    if "model" not in tensors or "config" not in header:
        raise CorruptFolderError(
            f"{found} must hold model.safetensors and a config, got {sorted(tensors)}"
        )
    for name, expected in header.get("files", {}).items():
        if not (found / name).is_file() or checksum(found / name) != expected:
            raise CorruptFolderError(
                f"{found / name} must be the file with the check sum {expected} that the model was written with"
            )
    return ModelWeights(tensors.pop("model"), header["config"], beside=tensors)
