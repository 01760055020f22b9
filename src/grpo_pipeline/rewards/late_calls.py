"""Count the reward calls that ran out of time."""

import logging
import threading
from collections import Counter

logger = logging.getLogger(__name__)


class LateCalls:
    """A counter of reward calls that ran out of time, which logs each doubling of their number; thread-safe."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Count all such calls in this process."""
        return self._counts.total()

    def add(self, function: str, *, seconds: float) -> None:
        """Count a call of a reward that was ended after so many seconds."""
        with self._lock:
            self._counts[function] += 1
            count = self._counts[function]
        if count & (count - 1) == 0:  # 1, 2, 4, 8 …
            logger.warning(
                "The reward %s has run out of time in %d %s so far, which cost %.0f s; find what hangs, or lower "
                "reward_pool.timeout_seconds",
                function,
                count,
                "call" if count == 1 else "calls",
                count * seconds,
            )


LATE = LateCalls()
"""Of all pools of this process."""
