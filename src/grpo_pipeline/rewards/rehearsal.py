"""Try user-defined rewards on texts of the training data before any training."""

from collections.abc import Mapping, Sequence

from grpo_pipeline.rewards.functions import shorten
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.pool import RewardPool

# Number of texts of the training data that user-defined rewards are tried on.
TRIED = 8


def try_rewards(
    own: Mapping[str, Measure],
    pool: RewardPool,
    *,
    subjects: Sequence[str],
    references: Sequence[Sequence[str]],
    task: str,
    prompts: Sequence[str] | None = None,
    cells: Sequence[str] | None = None,
) -> None:
    """Call user-defined rewards on a few texts of the training data, before any training.

    Raises:
        RewardFailedError: for a reward that scores none of them.
        RewardPoolError: for one that gives another value for the same text, or cannot be imported.
    """
    for name, measure in own.items():
        found = pool.submit(measure, subjects, references, prompts, cells).result()
        if len(subjects) and all(cause is not None for cause in found.causes):
            raise RewardFailedError(
                f"reward {name!r} must score texts of the training data, got no value for any of {len(subjects)} from "
                f"{measure.function}, the first one {shorten(subjects[0])}: {found.causes[0]}; correct the function, or take "
                f"it out of {task}.reward.own"
            )
