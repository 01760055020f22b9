"""Call a user's reward a second time on a few samples: one that gives another value for the same input cannot be learnt from.

Values are kept, repeated samples are measured once and chunks are cut anyhow: all of that is right for a function of each
(subject, references) alone, and for nothing else.
"""

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from grpo_pipeline.rewards.functions import (
    Measure,
    Outcome,
    RewardPoolError,
    Samples,
    shorten,
)

logger = logging.getLogger(__name__)
# Of the first chunk that a reward gets, of every 20th later one.
FIRST, LATER, EVERY = 4, 2, 20


class LateCalls:
    """Counts the calls of rewards that ran out of time, and says so when their number has doubled; any thread may ask."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """How many there were in this process."""
        return self._counts.total()

    def add(self, function: str, *, seconds: float) -> None:
        """Count one call of a reward that was ended after so many seconds."""
        with self._lock:
            self._counts[function] += 1
            count = self._counts[function]
        if count & (count - 1) == 0:  # 1, 2, 4, 8 …
            logger.warning(
                "The reward %s has run out of time in %d %s so far, which cost %.0f s; find what hangs, or lower "
                "rewards.pool.timeout_seconds",
                function,
                count,
                "call" if count == 1 else "calls",
                count * seconds,
            )


LATE = LateCalls()
"""Of all pools of this process."""


class SecondCalls:
    """Counts the chunks of every reward, and chooses what is measured twice; any thread may ask."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self._chunks: Counter[str] = Counter()
        self._lock = threading.Lock()

    def choose(self, measure: Measure, outcomes: Sequence[Outcome]) -> tuple[list[int], bool]:
        """Return the places in a chunk that are measured again, and whether it is the reward's first chunk.

        They are among those that the function gave a value, and come in another order and in other company than the first
        time; none of the project's own rewards, whose tests say the same.
        """
        if measure.is_built_in:
            return [], False
        with self._lock:
            before = self._chunks[measure.digest]
            self._chunks[measure.digest] += 1
        wanted = FIRST if not before else LATER if before % EVERY == 0 else 0
        places = [place for place, outcome in enumerate(outcomes) if _is_returned(outcome)]
        return places[:wanted][::-1], not before


def refuse_change(
    measure: Measure, samples: Samples, outcomes: Sequence[Outcome], again: Sequence[Outcome]
) -> None:
    """Compare the outcomes of two calls, exactly.

    A sample that raised or had no process one time is no evidence: that is a failure, counted as such. Without a value
    because it was NaN or infinite is a value like any other.

    Raises:
        RewardPoolError: for the first sample that has another value.
    """
    for (subject, _), first, second in zip(samples, outcomes, again, strict=True):
        if first != second and _is_returned(first) and _is_returned(second):
            raise RewardPoolError(
                f"the reward function {measure.function!r} must give one value for one input, got {_value(first)} and "
                f"{_value(second)} for {shorten(subject)}; let it depend on its arguments alone (no clock, no unseeded draw, no "
                "hash of a text, no other samples of the call)"
            )


def _is_returned(outcome: Outcome) -> bool:
    return not isinstance(outcome, str) or outcome.startswith("it returned")


def _value(outcome: Outcome) -> str:
    return str(outcome).removeprefix("it returned ").partition(",")[0]
