"""Write and read named tensors and JSON in a folder, with a check sum per file and one over the header that lists them."""

import glob
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor

SEAL = "sha256"


class CorruptFolderError(ValueError):
    """A folder of tensors is incomplete or damaged."""


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    header_name: str,
    header: Mapping[str, Any],
) -> None:
    """Write one safetensors file per entry, then the JSON header with the check sums of those files.

    Raises:
        OSError: if the disk refuses the write.
    """
    # Imports torch; the record of a run reads this module's other functions.
    from safetensors.torch import save_file

    sums = {}
    for name, entries in tensors.items():
        path = folder / f"{name}.safetensors"
        try:
            save_file(_separate(entries), path)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        sums[path.name] = checksum(path)
    content = json.loads(json.dumps({**header, "crc32": sums}, allow_nan=False))
    text = json.dumps({**content, SEAL: seal_of(content)}, indent=1)
    (folder / header_name).write_text(text, encoding="utf-8")


def read_tensors(
    folder: Path, header_name: str
) -> tuple[dict[str, dict[str, "Tensor"]], dict[str, Any]]:
    """Read what ``write_tensors`` wrote.

    Returns:
        name -> tensors, on the CPU, and the header.

    Raises:
        CorruptFolderError: naming the file that is missing, damaged or unreadable.
    """
    from safetensors.torch import load_file

    header = read_header(folder / header_name)
    tensors = {}
    for file_name, expected in header["crc32"].items():
        path = folder / file_name
        try:
            if (found := checksum(path)) != expected:
                raise CorruptFolderError(f"{path} must have check sum {expected}, got {found}")
            tensors[path.stem] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CorruptFolderError(
                f"{path} must be readable as safetensors, got {type(error).__name__}: {error}"
            ) from error
    return tensors, header


def read_header(path: Path) -> dict[str, Any]:
    """Read the JSON header alone.

    One without a check sum of its own, as earlier versions wrote it, is read as it is.

    Raises:
        CorruptFolderError: if it is missing, is not such a header, or is not the one that was written.
    """
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptFolderError(
            f"{path} must be a readable JSON file, got {type(error).__name__}: {error}"
        ) from error
    if not isinstance(header, dict) or not isinstance(header.get("crc32"), dict):
        raise CorruptFolderError(
            f"{path} must hold an object with the entry 'crc32', got {str(header)[:80]}"
        )
    if header.get(SEAL, found := seal_of(header)) != found:
        raise CorruptFolderError(
            f"{path} must be as it was written, got another check sum than it names"
        )
    return header


def seal_of(header: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a header's values, whatever the layout of its text, without the check sum itself."""
    values = {name: value for name, value in header.items() if name != SEAL}
    return hashlib.sha256(
        json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _separate(tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Give each tensor its own contiguous memory, as safetensors demands; copies only where memory is shared."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        contiguous = tensor.detach().contiguous()
        pointer = contiguous.untyped_storage().data_ptr()
        separate[name] = contiguous.clone() if pointer in seen else contiguous
        seen.add(pointer)
    return separate


def checksum(path: Path) -> str:
    """Return the CRC-32 of a file as eight hexadecimal digits; finds damage, not forgery."""
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


# Replace a file or a folder in one step: a reader finds the old content or the new, never a mixture.
#
# Order of events for a folder: write ``<folder>.partial-<pid>``, flush it to disk, rename the old folder to
# ``<folder>.previous``, rename the new one into place, remove the old. A process killed between the two renames leaves only
# ``.previous``, which ``find_complete`` returns. One writer per folder at a time.


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty partial folder; on leaving, put it in place of ``folder``. On an error the old folder stays.

    Remains of writers that were killed are removed first. The parent folder is created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        yield partial
        for path in partial.rglob("*"):
            _flush(path)
        _flush(partial)
        _swap(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Put a file with this content in place of the old one, which stays whole where the disk refuses the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def put_in_place(ready: Path, target: Path) -> None:
    """Put a complete file or folder in the place of another; both are on one file system.

    A file keeps its first name, too, where the file system knows links: a reader that was given that name still finds it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if ready.is_dir():
        for path in ready.rglob("*"):
            _flush(path)
        _flush(ready)
        _swap(ready, target)
        return
    _flush(ready)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(ready, partial)
        except OSError:
            ready.replace(target)
        else:
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    _flush(target.parent)


def find_complete(folder: Path) -> Path | None:
    """Return the folder that holds the last complete content, or None."""
    return next((path for path in (folder, _previous(folder)) if path.is_dir()), None)


def _swap(partial: Path, folder: Path) -> None:
    previous = _previous(folder)
    if folder.is_dir():
        # Only now: while ``folder`` is missing, ``previous`` is the last complete content.
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    try:
        partial.rename(folder)
    except OSError:
        if previous.is_dir() and not folder.exists():
            previous.rename(folder)
        raise
    _flush(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")


def remove_partials(place: Path) -> None:
    """Remove what killed writers left of a file or folder, also in its versions below; nobody may be writing it."""
    for pattern in (f"{place.name}.partial-*", f".{place.name}.partial-*"):
        for path in [*place.parent.glob(pattern), *place.glob(f"*/{pattern}")]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Digest the content of a file or a folder; a folder that lists its parts' check sums is read by that list alone.

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
