"""Replies as they can stand in a table: a model that writes bytes also writes what no file of text holds."""

import unicodedata

_CONTROL = {code: " " if chr(code).isspace() else "\ufffd" for code in range(0x100) if unicodedata.category(chr(code)) == "Cc"}


def printable(text: str) -> str:
    """Return the text on one line: a control character is a blank if it parts words, else U+FFFD.

    The number of words and their borders stay.
    """
    return text.translate(_CONTROL)
