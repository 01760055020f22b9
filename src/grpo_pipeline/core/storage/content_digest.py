"""Digest the content of a file or a folder; a folder that lists its parts' check sums is read by that list alone."""

import hashlib
from pathlib import Path

LISTS = (
    "checkpoint.json",
    "model.json",
    "meta.json",
)  # headers with check sums, or with a digest, of all that lies beside them

LENGTH = 16

PIECE = 1 << 20


def content_digest(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a SHA-256 over a file, a folder's header, or all files of a folder.

    A folder with a header is not read whole: who loads it compares its parts with the header.

    Raises:
        FileNotFoundError: if nothing is there.
    """
    total = hashlib.sha256()
    if path.is_dir():
        header = next((path / name for name in LISTS if (path / name).is_file()), None)
        files = [header] if header else sorted(file for file in path.rglob("*") if file.is_file())
    else:
        files = [path]
    for file in files:
        if file != path:
            total.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                total.update(piece)
    return total.hexdigest()[:LENGTH]
