"""Remove invisible characters from texts: control characters, and marks that change the direction of a text."""

import unicodedata
from collections.abc import Mapping

from grpo_pipeline.tasks.text_lines import composed

# Embeddings, overrides and isolates (Unicode Standard Annex 9), and the marks of left, right and Arabic letters.
BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
CONTROL = [code for code in range(0x100) if unicodedata.category(chr(code)) == "Cc"]
LAYOUT = "\t\n\r"
_SHOWN = {code: " " if chr(code).isspace() else "\ufffd" for code in CONTROL} | dict.fromkeys(
    BIDIRECTIONAL, "\ufffd"
)
_REMOVED = {code: " " if chr(code).isspace() else "" for code in CONTROL if chr(code) not in LAYOUT}
_REMOVED |= dict.fromkeys(BIDIRECTIONAL, "")


def printable(text: str) -> str:
    """Make a reply of a model printable in a table: a model of bytes may write characters that no text file can hold.

    The result is a single line. A control character becomes a blank if it separates words, else U+FFFD, as does a mark of
    direction. The number of words and their borders stay.
    """
    return text.translate(_SHOWN)


def without_hidden(cells: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Remove hidden characters from the cells of a row, normalise their Unicode form, and count the removed characters.

    A control character that separates words becomes a blank. Others and marks of direction are removed; tabs and line breaks
    stay. Otherwise, texts that look the same would differ for model, reward and metric.
    """
    count = 0

    def cleaned(value: object) -> object:
        nonlocal count
        if isinstance(value, list):
            return [cleaned(part) for part in value]
        if not isinstance(value, str):
            return value
        count += sum(ord(sign) in _REMOVED for sign in value) if not value.isprintable() else 0
        return composed(value.translate(_REMOVED))

    return {key: cleaned(value) for key, value in cells.items()}, count
