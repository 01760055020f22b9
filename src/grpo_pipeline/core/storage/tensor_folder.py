"""Write and read named tensors and JSON in a folder, with a check sum per file and one over the header that lists them."""

import hashlib
import json
import zlib
from collections.abc import Mapping
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
