"""Call rewards of the user's on texts of the training data before anything is trained."""

from collections.abc import Mapping, Sequence

from grpo_pipeline.rewards.functions import Measure, shorten
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.pool import RewardPool

# Texts of the training data that rewards of the user's are called on before anything is trained.
TRIED = 8


def try_rewards(
    own: Mapping[str, Measure],
    pool: RewardPool,
    *,
    subjects: Sequence[str],
    references: Sequence[Sequence[str]],
    task: str,
    prompts: Sequence[str] | None = None,
) -> None:
    """Call the rewards of the user's on a few texts of the training data, before anything is trained.

    Raises:
        RewardFailedError: for a reward that scores none of them.
        RewardPoolError: for one that gives another value for the same text, or cannot be imported.
    """
    for name, measure in own.items():
        found = pool.submit(measure, subjects, references, prompts).result()
        if len(subjects) and all(cause is not None for cause in found.causes):
            raise RewardFailedError(
                f"reward {name!r} must score texts of the training data, got no value for any of {len(subjects)} from "
                f"{measure.function}, the first one {shorten(subjects[0])}: {found.causes[0]}; correct the function, or take "
                f"it out of {task}.rewards.own"
            )
