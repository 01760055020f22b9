"""Turn nested, typed parameters into the flat names and short texts that a tracker takes."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")

MAX_VALUE_LENGTH = 500  # what every MLflow server since 1.0 takes; newer ones take more

MAX_NAME_LENGTH = 250


def to_plain(value: Any) -> Any:
    """Convert parameters to the dicts, lists and scalars of YAML and JSON; models and dataclasses become dicts."""
    if isinstance(value, BaseModel):
        return to_plain(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        )
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            to_plain(item)
            for item in (value if isinstance(value, Sequence) else sorted(value, key=str))
        ]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def flatten(parameters: Mapping[str, Any], *, sep: str = ".") -> dict[str, str]:
    """Flatten parameters to a text per leaf, named by its path; a list is a JSON leaf, an empty section the leaf ``{}``."""
    return {
        sanitise(name)[:MAX_NAME_LENGTH]: text
        for name, text in _leaves(to_plain(parameters), prefix="", sep=sep)
    }


def _leaves(value: Any, *, prefix: str, sep: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _leaves(item, prefix=f"{prefix}{sep}{key}" if prefix else key, sep=sep)
    else:
        yield prefix, json.dumps(value) if isinstance(value, dict | list) else str(value)


def sanitise(name: str) -> str:
    """Replace characters that MLflow forbids in names, and remove leading or doubled slashes."""
    return re.sub(r"/{2,}", "/", re.sub(r"[^\w./\- ]", "_", name)).strip("/") or "_"


def shorten(value: str, *, limit: int = MAX_VALUE_LENGTH) -> str:
    """Cut a value to the limit, with a note on its full length."""
    if len(value) <= limit:
        return value
    note = f" … ({len(value)} characters; all of it in config/parameters.yml)"
    return value[: limit - len(note)] + note


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Split a sequence into lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
