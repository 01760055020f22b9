"""Read and replace the fields of a task: its sections of parameters, and its initial weights."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pydantic import ValidationError


def sections_of(task: Any) -> dict[str, Any]:
    """Find the sections of parameters that a task holds: its fields that are pydantic models, by name."""
    return {
        f.name: section
        for f in fields(task)
        if hasattr(section := getattr(task, f.name), "model_dump")
    }


def changed_sections(task: Any, sections: Mapping[str, Any], *, path: str) -> Any:
    """Replace sections of a task, in the fields of the same names or those that ``section_fields`` names.

    Raises:
        ValueError: if there is no such field, or the values are invalid. The sentence names the path.
    """
    other, changed = getattr(task, "section_fields", {}), {}
    known = sections_of(task) if sections else {}
    for name, values in sections.items():
        place = other.get(name, name)
        if place not in known or name in other.values():
            named = {field: name for name, field in other.items()}
            there = ", ".join(named.get(field, field) for field in known)
            raise ValueError(
                f"{path} must hold sections among {there}, got {name}; an arm cannot have its own"
            )
        try:
            changed[place] = type(known[place]).model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([path, name, *map(str, first["loc"])])
            raise ValueError(
                f"{where}: {first['msg']}, got {first['input']!r}; correct it"
            ) from error
    return replace(task, **changed) if changed else task


def begun_with(task: Any, start: Any) -> Any:
    """Store these weights in the task's field ``start``, which its ``build_policy`` reads.

    Raises:
        TypeError: if the task has no such field.
    """
    if (
        not is_dataclass(task)
        or isinstance(task, type)
        or "start" not in {f.name for f in fields(task)}
    ):
        raise TypeError(
            f"{type(task).__name__} must have a field start to begin with trained weights, got none; add one"
        )
    return replace(task, start=start)
