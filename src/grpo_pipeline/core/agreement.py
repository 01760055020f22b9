"""Compare the parameters that decide the weights between a run and the checkpoint that it resumes, and explain each difference.

A parameter that only says how a run is executed (where, in how many pieces, how often something is written) is marked
``Annotated[..., EXECUTION]`` in its pydantic model. It may change when a run goes on, and so may the length of training.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

EXECUTION = "says how a run is executed, and not what it computes"
SHOWN, LONGEST = 5, 60  # differences that an error names, characters of a value
ABSENT = "nothing"


def execution_fields(model: type[BaseModel]) -> set[str]:
    """Return the fields of a model that are marked as execution."""
    return {name for name, field in model.model_fields.items() if EXECUTION in field.metadata}


def decisive(section: BaseModel, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a section of parameters that decide the weights, as JSON values; ``without`` leaves out more."""
    return section.model_dump(mode="json", exclude=execution_fields(type(section)) | set(without))


def digest_of(parameters: Mapping[str, Any]) -> str:
    """Return the SHA-256 of nested JSON values; the order of the keys does not count."""
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()


def differences(
    here: Mapping[str, Any], there: Mapping[str, Any], *, names: Mapping[str, str] | None = None
) -> list[str]:
    """Return ``<path>: <value here> here, <value there> in the checkpoint`` for each value that differs, in order of path.

    Args:
        here: nested JSON values of this run.
        there: those of the checkpoint.
        names: first key -> what the path begins with instead, such as "training" -> "<task>.training".
    """
    flat = [dict(_flat(json.loads(json.dumps(values)), names or {})) for values in (here, there)]
    mine, stored = flat
    paths = sorted(
        path
        for path in mine.keys() | stored.keys()
        if mine.get(path, _Missing) != stored.get(path, _Missing)
    )
    return [
        f"{path}: {_shown(mine, path)} here, {_shown(stored, path)} in the checkpoint"
        for path in paths
    ]


def summary(found: Sequence[str]) -> str:
    """Return the first differences and how many more there are."""
    more = len(found) - SHOWN
    return "; ".join(found[:SHOWN]) + (f" and {more} more" if more > 0 else "")


class _Missing:
    """Stands for a value that is not there; null is one."""


def _flat(values: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        yield from _leaves(names.get(key, key), value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def _shown(values: Mapping[str, Any], path: str) -> str:
    if path not in values:
        return ABSENT
    value = values[path]
    text = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str) and len(value) == 64:  # a digest
        return f"{value[:12]}…"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
