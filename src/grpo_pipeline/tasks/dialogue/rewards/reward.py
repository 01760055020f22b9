"""Measure the terms of the reward of groups of sampled replies, and join them: components [P, G].

How this differs from public versions: the F1 that is optimised is the F1 that is reported (``scores/f1.py``). A failed reward is
never a 0: it is left out, gets a stated penalty or stops the run. It is counted with its cause.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import PendingRewards, Subjects, check_groups
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.shares import join_rewards
from grpo_pipeline.tasks.dialogue.batch import Outcomes
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward


def submit_rewards(
    params: DialogueReward,
    pool: RewardPool,
    *,
    replies: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    questions: Sequence[str] | None = None,
    cells: Sequence[str] | None = None,
) -> PendingRewards:
    """Begin to measure every component of every reply, and return at once.

    Args:
        params: components and weights.
        pool: processes that measure, with the rule for failures; values do not depend on their number.
        replies: P groups of G texts.
        answers: P lists of at least one reference answer, or empty lists all where no term reads them.
        questions: P texts that the model read, for rewards that read them; None for empty ones.
        cells: P JSON objects of the other columns, for rewards that read them; None for empty ones.

    Raises:
        ValueError: if groups differ in size or are empty, or a group has no list of answers or an empty one beside others.
    """
    check_groups(replies, name="replies")
    if len(answers) != len(replies):
        raise ValueError(
            f"answers must have one row per group, got {len(answers)} for {len(replies)}; give each prompt its own"
        )
    wrong = [isinstance(texts, str) or (not texts and any(answers)) for texts in answers]
    empty = [row for row, is_wrong in enumerate(wrong) if is_wrong]
    if empty:
        raise ValueError(
            f"the answers of prompt {empty[0]} must be a list of at least one text, got {answers[empty[0]]!r}; correct the row"
        )
    # P * G replies, row n = p * G + g, each with what belongs to its prompt.
    size = len(replies[0])
    subjects = [reply for group in replies for reply in group]
    references = [texts for texts in answers for _ in range(size)]
    prompts, rows = (
        None if texts is None else [text for text in texts for _ in range(size)]
        for texts in (questions, cells)
    )
    futures = {
        name: pool.submit(measure, subjects, references, prompts, rows)
        for name, measure in params.measures.items()
    }
    return PendingRewards(
        params.weights,
        pool.failure,
        futures=futures,
        subjects=Subjects(replies, noun="reply"),
    )


def gather_rewards(
    params: DialogueReward, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts, and join their components, float64 [P, G]; see ``join_rewards``.

    Raises:
        RewardFailedError: if a component failed under the rule ``stop``, or for every reply.
    """
    return join_rewards(
        outcomes.rewards,
        params.weights,
        shape=shape,
        is_counted=torch.ones(shape, dtype=torch.bool),
        enough=1,
        noun="reply",
    )
