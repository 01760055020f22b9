"""Declare a row of a manifest, and the error of one that cannot be used."""

from typing import Any

Row = dict[str, Any]


class RowError(ValueError):
    """A row that cannot be used; ``file`` is the file at fault, or "" for the row itself."""

    def __init__(self, reason: str, *, file: str = "") -> None:
        super().__init__(reason)
        self.file = file
