"""Make names of files from texts of the user."""

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
    """Make a file name without ending per text: equal for equal texts, different for different ones.

    A text of letters, digits, -, _ and inner full stops stays unchanged. In any other text, every other character becomes _ and
    the first 10 digits of its SHA-256 follow. So they do for a text that a file system without case would confuse with another,
    or takes for a device.
    """
    spellings: dict[str, set[str]] = {}
    for text in texts:
        spellings.setdefault(text.casefold(), set()).add(text)
    return [file_name(text, is_free=len(spellings[text.casefold()]) == 1) for text in texts]


def file_name(text: str, *, is_free: bool) -> str:
    """Make the file name of a text; ``is_free`` is True if no other text differs from it by case alone."""
    if is_free and PLAIN.fullmatch(text) and text.casefold().partition(".")[0] not in DEVICES:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    # Programs would read a leading - as an option.
    kept = re.sub(r"^-|[^A-Za-z0-9_-]", "_", text)[:60]
    return f"{kept or '_'}-{digest}"
