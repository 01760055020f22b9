"""Read a cell of a request that holds a list."""

import json
from typing import Any


def read_list(cell: Any, *, name: str) -> list[Any] | None:
    """Read a list, or the JSON text of one, as a CSV file has it; None for an empty cell.

    Args:
        cell: the cell; NaN and "" are empty, too.
        name: of its column, for messages.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(cell, str) and cell.strip():
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} must be a list in JSON, got {error}; correct it") from error
    if isinstance(cell, list | tuple):
        return list(cell)
    if cell is None or cell == "" or cell != cell:
        return None
    raise ValueError(f"{name} must be a list, got {cell!r}; correct it")
