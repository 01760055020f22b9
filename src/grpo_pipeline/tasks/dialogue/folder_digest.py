"""Describe a language model for a checkpoint: by its parameters, and a folder by the digest of its content.

A run may be resumed after the folder was moved, but not with another model.
"""

import hashlib
from pathlib import Path
from typing import Any

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.tasks.dialogue.language_model.params import FolderParams, LanguageModelParams

CHUNK = 2**20
SUFFIXES = (".json", ".safetensors", ".model", ".txt", ".jinja")


def digest_of_folder(path: str) -> str:
    """Compute the SHA-256 of names and contents of the files of a model and its tokenizer."""
    digest = hashlib.sha256()
    for file in sorted(
        entry for entry in Path(path).iterdir() if entry.suffix in SUFFIXES and entry.is_file()
    ):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while part := stream.read(CHUNK):
                digest.update(part)
    return digest.hexdigest()


def describe_language_model(params: LanguageModelParams) -> dict[str, Any]:
    """Describe the language model by its parameters, and a folder by its content."""
    network = decisive(params.network, without=["path"])
    if isinstance(params.network, FolderParams):
        network["content"] = digest_of_folder(params.network.path)
    elif params.tokenizer_folder is not None:
        network["tokenizer"] = digest_of_folder(params.tokenizer_folder)
    return decisive(params, without=["network"]) | {"network": network}
