"""Call a user's reward again on a few samples, and refuse a reward with another value for the same input.

Values are cached, repeated samples are measured once, and chunks are cut arbitrarily. That is correct only for a function of each
(subject, references) alone.
"""

import threading
from collections import Counter
from collections.abc import Sequence

from grpo_pipeline.rewards.calling import Samples
from grpo_pipeline.rewards.functions import shorten
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measuring import Outcome
from grpo_pipeline.rewards.pool_error import RewardPoolError

# Places of the first chunk of a reward, and of every 20th later one.
FIRST, LATER, EVERY = 4, 2, 20


class SecondCalls:
    """A counter of the chunks of every reward, which chooses the samples that are measured twice; thread-safe."""

    def __init__(self) -> None:
        """Begin without chunks."""
        self._chunks: Counter[str] = Counter()
        self._lock = threading.Lock()

    def choose(self, measure: Measure, outcomes: Sequence[Outcome]) -> tuple[list[int], bool]:
        """Choose the places in a chunk that are measured again; returns also whether it is the reward's first chunk.

        They are among the places with a value. Their order and neighbours differ from the first call. The project's own rewards
        are left out: their tests check the same.
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
    """Refuse a reward whose outcomes of two calls differ in any bit.

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
