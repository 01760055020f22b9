"""Make names of files from names that a user chose."""

import hashlib
import re
from collections.abc import Sequence

PLAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9_-])?")

DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{i}" for port in ("com", "lpt") for i in range(10)),
}


def file_names(texts: Sequence[str]) -> list[str]:
    """Return one file name without ending per text, the same for the same text, different for different ones.

    A text of letters, digits, -, _ and inner full stops stays as it is. In any other, and in one that a file system which ignores
    case would confuse with another or takes for a device, every other character becomes _ and the first 10 digits of its SHA-256
    follow.
    """
    spellings: dict[str, set[str]] = {}
    for text in texts:
        spellings.setdefault(text.casefold(), set()).add(text)
    return [file_name(text, is_free=len(spellings[text.casefold()]) == 1) for text in texts]


def file_name(text: str, *, is_free: bool) -> str:
    """Return the file name of one text; ``is_free`` says that no other differs from it by case alone."""
    if is_free and PLAIN.fullmatch(text) and text.casefold().partition(".")[0] not in DEVICES:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    # A leading - would be taken for an option by programs that are given the file.
    kept = re.sub(r"^-|[^A-Za-z0-9_-]", "_", text)[:60]
    return f"{kept or '_'}-{digest}"
