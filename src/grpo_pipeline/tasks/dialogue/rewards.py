"""Compute rewards of groups of sampled replies: components [P, G], each by its own function.

What differs from public versions: the F1 that is optimised is the F1 that is reported (``scores.py``), and a reward that fails
is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.rewards.functions import Measure
from grpo_pipeline.rewards.group_rewards import (
    GroupRewards,
    PendingRewards,
    RewardFailedError,
    Subjects,
    check_groups,
)
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.batch import Outcomes
from grpo_pipeline.tasks.dialogue.params import RewardParams

__all__ = ["PendingRewards", "ReplyRewards", "RewardFailedError", "submit_rewards"]

# What a batch of replies earned; the loop of this task knows it by this name.
ReplyRewards = GroupRewards


def submit_rewards(
    params: RewardParams,
    pool: RewardPool,
    *,
    replies: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    questions: Sequence[str] | None = None,
) -> PendingRewards:
    """Begin to measure every part of every reply and return at once.

    Args:
        params: parts, weights, the rule for failures.
        pool: measures; its values do not depend on how many processes it has.
        replies: P groups of G texts.
        answers: P lists of at least one reference answer.
        questions: P texts, what the model read, for rewards that read it; None for empty ones.

    Raises:
        ValueError: for groups of different or no size, or for other than one non-empty list of answers per group.
    """
    check_groups(replies, name="replies")
    if len(answers) != len(replies):
        raise ValueError(
            f"answers must have one row per group, got {len(answers)} for {len(replies)}; give each prompt its own"
        )
    empty = [row for row, texts in enumerate(answers) if isinstance(texts, str) or not texts]
    if empty:
        raise ValueError(
            f"the answers of prompt {empty[0]} must be a list of at least one text, got {answers[empty[0]]!r}; correct the row"
        )
    # P * G replies behind each other, row n = p * G + g, each with the answers of its prompt.
    subjects = [reply for group in replies for reply in group]
    references = [texts for group, texts in zip(replies, answers, strict=True) for _ in group]
    prompts = (
        None
        if questions is None
        else [question for group, question in zip(replies, questions, strict=True) for _ in group]
    )
    measures: Mapping[str, Measure] = params.measures
    futures = {
        name: pool.submit(measure, subjects, references, prompts)
        for name, measure in measures.items()
    }
    return PendingRewards(
        params.component_weights,
        params.failure,
        futures=futures,
        subjects=Subjects(replies, noun="reply"),
    )


# Put the rewards of a batch together from those that were measured with it.


class RewardShare(NamedTuple):
    """The rewards of one prompt's replies: a row of those that are being measured together."""

    pending: PendingRewards
    place: int


def gather_rewards(
    params: RewardParams, outcomes: Outcomes, *, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Wait for the rewards of P prompts and return the parts, float64 [P, G].

    Where nothing was written there is nothing to measure: every part is NaN (not scored), never the score of an empty reply.

    Raises:
        RewardFailedError: if a part failed under the rule ``stop``, or a weighted part could not be measured for any reply: a
            reward that always fails would train nothing without a word.
    """
    if not outcomes.rewards:
        return {
            name: torch.full(shape, torch.nan, dtype=torch.float64)
            for name in params.component_weights
        }
    results = {id(share.pending): share.pending.result() for share in outcomes.rewards}
    shares = [(results[id(share.pending)], share.place) for share in outcomes.rewards]
    _refuse_without_any(list(results.values()))
    return {
        name: torch.stack([result.components[name][place] for result, place in shares])
        for name in params.component_weights
    }


def _refuse_without_any(results: list[ReplyRewards]) -> None:
    for name, weight in results[0].weights.items():
        if weight and all(bool(result.is_failed[name].all()) for result in results):
            cause = next(result.causes[name] for result in results if name in result.causes)
            raise RewardFailedError(
                f"reward {name!r} must score at least one reply of a batch, got no value from {cause}; correct the function, or "
                "set its weight to 0"
            )
