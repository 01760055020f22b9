"""Measure a chunk of samples, and apply the rule for samples that a function cannot score."""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_pipeline.rewards.calling import call_function
from grpo_pipeline.rewards.functions import RewardFunction
from grpo_pipeline.rewards.quoting import MAX_CAUSE, quote_error

# The value of a sample, or a sentence with the reason why it has none.
Outcome = float | str


def measure_chunk(
    function: RewardFunction,
    options: Mapping[str, Any],
    subjects: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[Outcome]:
    """Call the function on a chunk; returns an outcome per sample.

    A call that raises, or returns another number of values, is repeated sample by sample, so that a bad sample does not affect
    its neighbours. A value that is NaN, infinite or no number counts as no score.
    """
    try:
        returned: Any = call_function(function, options, subjects, references)
        if inspect.iscoroutine(returned):
            import asyncio  # takes longer than all other imports of a process that measures

            returned = asyncio.run(returned)
        if not isinstance(returned, Iterable):
            raise TypeError(f"it must return one value per sample, got {type(returned).__name__}")
        values = list(returned)
        if len(values) != len(subjects):
            raise ValueError(
                f"it must return one value per sample, got {len(values)} for {len(subjects)}"
            )
        return [_outcome(value) for value in values]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's reward raises belongs to its samples
        if len(subjects) == 1:
            return [f"it raised {quote_error(error)}"]
    pairs = zip(subjects, references, strict=True)
    return [measure_chunk(function, options, [subject], [texts])[0] for subject, texts in pairs]


def _outcome(value: Any) -> Outcome:
    if isinstance(value, str):
        return f"it must return numbers, got the text {value[:MAX_CAUSE]!r}"
    number = float(value)
    return number if math.isfinite(number) else f"it returned {number}, which is no score"
