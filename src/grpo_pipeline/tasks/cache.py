"""Keep results that are the same for every arm of a run: the first arm computes them, the others take them."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


class Cache:
    """Values by what they were computed from.

    A task holds one for what the start does with held-out prompts: each arm is measured beside it, with the same noise.
    A copy of a task with something replaced, such as its start, has an empty one of its own (the field has ``init=False``).
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[object, Any]] = {}

    def take(self, data: object, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return what ``compute`` returned when it was first asked for with this data set and this key.

        Args:
            data: compared by identity, and held, so that no other object gets its identity.
            key: everything else that the value depends on.
            compute: called once for each pair of the two.
        """
        pair = (id(data), key)
        if pair not in self._values:
            self._values[pair] = (data, compute())
        return cast(Value, self._values[pair][1])
