"""Cache measured rewards by their exact inputs."""

from collections import OrderedDict
from collections.abc import Hashable

Key = tuple[str, str, tuple[str, ...]]


class RewardCache:
    """The last ``size`` values that were read or written, by key; size 0 stores none."""

    def __init__(self, size: int) -> None:
        """Start empty."""
        self._size = size
        self._values: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> float | None:
        """Look up the value of a key and mark it as the latest; None without a value."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: float) -> None:
        """Store a value as the latest, and drop the value that was unused the longest."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
