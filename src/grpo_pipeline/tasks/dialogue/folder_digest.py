"""Compute a digest of the content of a model folder.

A run may be resumed after the folder was moved, but not with another model.
"""

import hashlib
from pathlib import Path

CHUNK = 2**20
SUFFIXES = (".json", ".safetensors", ".model", ".txt")


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
