"""Check before any training that the right answers of the data earn what the reward has to give."""

import logging

import numpy as np
import pandas as pd

from grpo_pipeline.rewards.functions import shorten
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward

logger = logging.getLogger(__name__)
NAMED = 5


def check_right_answers(params: DialogueReward, pool: RewardPool, table: pd.DataFrame) -> None:
    """Measure the first answer of every example, and name those that a term does not pay its best value.

    A term that no example can satisfy trains nothing. Terms without a best value (``DialogueReward.best``) are not measured. What
    the pool still knows from an earlier check, of the stage before an arm for instance, is not said again.

    Args:
        params: the terms.
        pool: measures them.
        table: the examples.

    Raises:
        RewardFailedError: if a term that reads the answers pays its best value for none of them, or there are none.
    """
    if not any(len(texts) for texts in table["answers"]):
        _refuse_readers(params, table)
        return
    answers = [list(texts) for texts in table["answers"]]
    first = [texts[0] for texts in answers]
    for name in [name for name in params.best if name in params.measures]:
        best = params.best[name]
        before = pool.counts.measured
        values = pool.submit(params.measures[name], first, answers).result().values
        is_known = pool.counts.measured == before
        bad = np.flatnonzero(~(values >= best))
        if not len(bad):
            continue
        told = f"{table['example_id'].iloc[bad[0]]!r} ({shorten(first[bad[0]])})"
        if len(bad) == len(first) and name in params.reads_answers:
            raise RewardFailedError(
                f"reward {name!r} must pay {best:g} for the right answer of an example, got less for all {len(first)}, the first "
                f"one {told}; correct the answers, or take the term away with dialogue.reward.{name}: null"
            )
        if is_known:
            continue
        others = ", ".join(repr(table["example_id"].iloc[place]) for place in bad[1:NAMED])
        logger.warning(
            "reward %r pays less than %g, its best value, for the right answers of %d of %d examples: %s%s; a model cannot earn "
            "more there by answering right",
            *(name, best, len(bad), len(first), told, f", {others}" if others else ""),
        )


def _refuse_readers(params: DialogueReward, table: pd.DataFrame) -> None:
    """Refuse terms that read the answers, where the examples have none."""
    readers = [name for name in params.reads_answers if name in params.terms]
    if readers:
        raise RewardFailedError(
            f"reward {readers[0]!r} must have a right answer of every example, got none of {table['example_id'].iloc[0]!r}; name "
            f"the column in dialogue.data.source.answers, or take the term away with dialogue.reward.{readers[0]}: null"
        )
