"""List the names of ratios and reductions, look names up, and say which are known where one is not. Imports no torch."""

from collections.abc import Collection, Mapping
from typing import Literal, TypeVar, get_args

RatioLevel = Literal["decision", "joint", "sequence"]
LikelihoodLevel = Literal["decision", "joint"]  # those whose ratio is one of likelihoods
Reduction = Literal[
    "per_sequence", "per_sequence_sum", "per_decision", "constant", "per_decision_local"
]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

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
