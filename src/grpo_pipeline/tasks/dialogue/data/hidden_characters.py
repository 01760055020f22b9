"""Clean texts of what nobody sees: control characters, and marks that change the direction in which a text is shown."""

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
    """Return a reply as it can stand in a table: a model that writes bytes also writes what no file of text holds.

    The text is on one line: a control character is a blank if it parts words, else U+FFFD, as a mark of direction is. The
    number of words and their borders stay.
    """
    return text.translate(_SHOWN)


def without_hidden(cells: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Return the cells of a row without hidden characters, in one Unicode form, and how many there were.

    A control character that parts words becomes a blank, others and marks of direction are removed; tabs and line breaks stay.
    Two texts that look the same would otherwise be different ones to model, reward and metric.
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
