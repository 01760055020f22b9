"""Look names up, and list the known ones where one is not."""

from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")


def choose(table: Mapping[str, T], name: str, parameter: str) -> T:
    """Return the entry of a table.

    Raises:
        ValueError: listing the known names.
    """
    check_name(name, table, parameter)
    return table[name]


def check_name(name: str, known: Collection[str], parameter: str) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: listing the known names.
    """
    if name not in known:
        raise ValueError(
            f"{parameter} must be one of {', '.join(known)}, got {name!r}; correct the parameter"
        )
