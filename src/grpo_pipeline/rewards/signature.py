"""Find what a reward function reads by its signature.

A reward function has the signature ``(subjects: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[float]`` and may
take keyword options. Parameters after the first that are called ``prompts``, ``answers``, ``references`` or ``columns`` get
these by name: ``(replies, *, prompts, answers, columns)``. A function with a parameter ``completions`` gets everything by name,
as in TRL: ``(prompts, completions, **kwargs)``. One that is ``async`` is awaited, a chunk at a time.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from grpo_pipeline.rewards.functions import RewardFunction

COMPLETIONS, PROMPTS, COLUMNS = "completions", "prompts", "columns"
REFERENCES = ("references", "answers")
BESIDE = (PROMPTS, *REFERENCES, COLUMNS)
"""What a function may read beside its samples, by name."""


class Call(NamedTuple):
    """Texts beside its samples that a function gets: references in the second place or not, and those of ``BESIDE`` by name."""

    has_references: bool
    by_name: tuple[str, ...]


def call_of(function: RewardFunction, options: Mapping[str, Any]) -> Call:
    """Find what a function reads by its signature; an option comes before what has the same name."""
    names, takes_all = parameters_of(function)
    if COMPLETIONS in names:
        read = {*names, PROMPTS, *REFERENCES} if takes_all else {*names}
        return Call(False, tuple(name for name in BESIDE if name in read and name not in options))
    if not names:  # Python cannot inspect it, or its parameters have no names
        return Call(True, ())
    found = [*inspect.signature(function).parameters.values()]
    rest = found if found[0].kind is inspect.Parameter.VAR_POSITIONAL else found[1:]
    places = [one.name for one in rest if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
    is_second = bool(places) and places[0] not in (PROMPTS, COLUMNS, *options)
    # The first parameter holds the samples, whatever its name.
    read = {one.name for one in rest} - {*(places[:1] if is_second else ())} - {*options}
    return Call(is_second, tuple(name for name in BESIDE if name in read))


def parameters_of(function: RewardFunction) -> tuple[tuple[str, ...], bool]:
    """List a function's parameters, and whether it takes any keyword; empty if Python cannot inspect it."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return (), False
    rest = any(one.kind is one.VAR_KEYWORD for one in found.values())
    named = (
        one.name for one in found.values() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    )
    return tuple(named), rest
