"""Keep results that are the same for every arm of a run: the first arm computes them, the others take them."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


class Cache:
    """A cache of values by the data and the key from which they were computed.

    A task holds a cache for the initial policy's outputs on held-out prompts, with which each arm is compared under the same
    noise. A copy of a task with a replaced field, such as its start, has an empty cache of its own (the field has
    ``init=False``).
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[object, Any]] = {}

    def take(self, data: object, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Look up a value by data set and key; ``compute`` makes it on the first request.

        Args:
            data: compared by identity, and held, so that no other object gets its identity.
            key: all other inputs of the value.
            compute: called once for each pair of data and key.
        """
        pair = (id(data), key)
        if pair not in self._values:
            self._values[pair] = (data, compute())
        return cast(Value, self._values[pair][1])
