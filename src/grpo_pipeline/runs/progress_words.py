"""Write the progress of a loop in words."""

from collections.abc import Mapping
from typing import NamedTuple


class Moment(NamedTuple):
    """The progress of a loop that is shown elsewhere: in another process, or as one of several."""

    description: str
    done: int
    total: int | None
    postfix: dict[str, float | str]


def plain_line(
    description: str,
    *,
    done: int,
    total: int | None,
    seconds: float,
    postfix: dict[str, float | str],
) -> str:
    """Write the progress of a loop in a line; the time left assumes that items take equally long."""
    parts = [f"{done}/{total} ({done / total:.0%})" if total else f"{done}", f"{seconds:.0f} s"]
    if total and 0 < done < total:
        parts.append(f"{seconds / done * (total - done):.0f} s left")
    return f"{description}: {', '.join([*parts, *_pairs(postfix)])}"


def words(moment: Moment) -> str:
    """Write the progress of a loop in words: ``grpo 120/400 reward=0.42``."""
    count = f"{moment.done}/{moment.total}" if moment.total else f"{moment.done}"
    return " ".join([moment.description, count, *_pairs(moment.postfix)])


def readable(seconds: float) -> str:
    """Write a duration for people: ``95 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _pairs(values: Mapping[str, float | str]) -> list[str]:
    return [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    ]
