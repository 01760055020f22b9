"""Read SAM weights from disk: a Hugging Face folder, or a ``.pth`` file of which tensors alone are unpickled."""

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import SamConfig

from grpo_pipeline.tasks.attention.model.encoder.inferred_config import infer_config
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder
from grpo_pipeline.tasks.attention.model.encoder.weight_names import (
    BASIS,
    TIED_BASIS,
    rename_original,
)

CONFIG, WEIGHTS = "config.json", "model.safetensors"

PATH, FORMAT = "attention.model.encoder.path", "attention.model.encoder.format"


def read_config(checkpoint: SamEncoder) -> SamConfig:
    """Read the architecture: from the folder's ``config.json``, or from the shapes in the ``.pth``.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
        ValueError: if it is of another kind, damaged, or no SAM.
    """
    if checkpoint.format == "segment_anything":
        weights = _read_original(checkpoint, device="meta")
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        return infer_config(shapes, file=checkpoint.path)
    path = _folder_file(checkpoint, CONFIG)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON file, got {error}; copy it again") from error
    if not isinstance(values, dict) or values.get("model_type") != "sam":
        found = values.get("model_type") if isinstance(values, dict) else values
        raise ValueError(
            f"{path} must have the model_type 'sam', got {found!r}; give the folder of a SamModel"
        )
    return SamConfig.from_dict(values)


def read_weights(checkpoint: SamEncoder) -> dict[str, Tensor]:
    """Read the weights under the names of ``SamModel``, float32 on the CPU.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
        ValueError: if it is of another kind, damaged, or no SAM.
    """
    original = checkpoint.format == "segment_anything"
    weights = (
        _read_original(checkpoint, device="cpu")
        if original
        else _read_safetensors(_folder_file(checkpoint, WEIGHTS))
    )
    # One matrix under two names: transformers writes either or both, segment-anything knows one.
    if found := {BASIS, TIED_BASIS} & weights.keys():
        weights[BASIS] = weights[TIED_BASIS] = weights[min(found, key=(BASIS, TIED_BASIS).index)]
    return {name: tensor.to(torch.float32) for name, tensor in weights.items()}


def digest_of(checkpoint: SamEncoder) -> str:
    """Return the SHA-256 of the content, hexadecimal, wherever it lies.

    Raises:
        FileNotFoundError: if the checkpoint or a file of the folder is missing.
    """
    original = checkpoint.format == "segment_anything"
    paths = (
        [_original_file(checkpoint)]
        if original
        else [_folder_file(checkpoint, name) for name in (CONFIG, WEIGHTS)]
    )
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _folder_file(checkpoint: SamEncoder, name: str) -> Path:
    folder = Path(checkpoint.path)
    if folder.is_file():
        raise ValueError(
            f"{PATH} must be a folder under the format 'huggingface', got the file {folder}; "
            f"give the folder around it, or set {FORMAT} to segment_anything for a .pth"
        )
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{PATH} must be a folder that exists, got {folder}; correct the path"
        )
    if not (folder / name).is_file():
        held = sorted(path.name for path in folder.iterdir())
        raise FileNotFoundError(
            f"{folder} must hold {CONFIG} and {WEIGHTS}, got {held}; write it with SamModel.save_pretrained"
        )
    return folder / name


def _original_file(checkpoint: SamEncoder) -> Path:
    path = Path(checkpoint.path)
    if path.is_dir():
        raise ValueError(
            f"{PATH} must be a .pth file under the format 'segment_anything', got the folder {path}; "
            f"give the file, or set {FORMAT} to huggingface"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{PATH} must be a file that exists, got {path}; correct the path")
    return path


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(
            f"{path} must be a whole safetensors file, got {error}; copy or download it again"
        ) from error


def _read_original(checkpoint: SamEncoder, *, device: str) -> dict[str, Tensor]:
    """Read a ``.pth``; on the device ``meta`` the tensors have shapes and no values, and the file is hardly read."""
    path = _original_file(checkpoint)
    content = _load_restricted(path, device)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        # Training scripts put optimiser and epoch beside it.
        content = content["model"]
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        is_dict = isinstance(content, dict)
        got = f"the keys {list(content)[:5]}" if is_dict else type(content).__name__
        raise ValueError(
            f"{path} must hold named tensors, by themselves or under the key 'model', got {got}; "
            "save it again as torch.save(model.state_dict(), path)"
        )
    return rename_original(
        {name.removeprefix("module."): tensor for name, tensor in content.items()}, file=str(path)
    )


def _load_restricted(path: Path, device: str) -> Any:
    """Load tensors and plain containers, nothing that could run code."""
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    if is_archive and not zipfile.is_zipfile(path):
        size = path.stat().st_size
        raise ValueError(
            f"{path} must be a whole .pth file, got {size} bytes that break off; copy or download it again"
        )
    try:
        return torch.load(path, map_location=device, weights_only=True)
    # The refusal is an UnpicklingError, whose module this package does not import; a damaged file raises several others.
    except Exception as error:
        raise ValueError(
            f"{path} must be a .pth file that loads with weights_only=True, got {type(error).__name__}: {_told(error)}; download "
            "it again if it is damaged, and where you trust its source load it elsewhere and save model.state_dict() alone"
        ) from error


def _told(error: Exception) -> str:
    """Return what a reader said of a file; torch's refusal without its advice to load the file all the same."""
    said = " ".join(str(error).split())
    if "weights_only" not in said:
        return str(error).strip().partition("\n")[0]
    named = re.search(r"GLOBAL ([\w.]+)", said)
    return f"it holds {named[1] if named else 'something else'}, and must hold tensors alone"
