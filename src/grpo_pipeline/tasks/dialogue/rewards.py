"""Compute rewards of groups of sampled replies: components [P, G], each by its own function.

What differs from public versions: the F1 that is optimised is the F1 that is reported (``f1.f1``), and a reward that fails
is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.rewards.functions import Measure
from grpo_pipeline.rewards.params import FailureParams, OwnRewardParams, check_own_names, check_weights
from grpo_pipeline.rewards.pool import (
    GroupRewards,
    PendingRewards,
    PoolParams,
    RewardFailedError,
    RewardPool,
    Subjects,
    check_groups,
)
from grpo_pipeline.tasks.dialogue.scores import Smoothing

# Parameters of the dialogue task's rewards (``dialogue.rewards``). Values live in YAML.

BUILT_IN = {
    "f1": "grpo_pipeline.tasks.dialogue.scores:f1",
    "rouge_l": "grpo_pipeline.tasks.dialogue.scores:rouge_l",
    "bleu": "grpo_pipeline.tasks.dialogue.scores:bleu",
}


class RewardParams(BaseModel):
    """The named parts of the reward, their weights, what a failure counts as, and where they are measured.

    Attributes:
        weights: of the built-in components; one that is absent, or has weight 0, is not computed.
        bleu_smoothing: of n-gram counts that are 0.
        own: rewards of the user's, by name; null without any.
        failure: what a sample counts as when a reward could not be measured.
        pool: where rewards are measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weights: dict[Literal["f1", "rouge_l", "bleu"], float]
    bleu_smoothing: Smoothing
    own: dict[str, OwnRewardParams] | None
    failure: FailureParams
    pool: Annotated[PoolParams, EXECUTION]

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        check_own_names(self.own or {}, BUILT_IN)
        check_weights(self.named_weights)
        return self

    @property
    def part_weights(self) -> dict[str, float]:
        """The weight of every part that is computed, built in and own."""
        return {name: weight for name, weight in self.named_weights.items() if weight}

    @property
    def named_weights(self) -> dict[str, float]:
        """The weights that were given, of built in and own parts."""
        named = {str(name): weight for name, weight in self.weights.items()}
        return named | {name: own.weight for name, own in (self.own or {}).items()}

    @property
    def all_weights(self) -> dict[str, float]:
        """The weight of every part that there is; 0 of what is not computed."""
        return self.named_weights | {name: 0.0 for name in BUILT_IN if name not in self.weights}

    @property
    def own_measures(self) -> Mapping[str, Measure]:
        """The parts of the user's that are computed."""
        return {name: measure for name, measure in self.measures.items() if name in (self.own or {})}

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The function and options of every part that is computed; made once, since a digest reads the function's file."""
        options = {"bleu": {"smoothing": self.bleu_smoothing}}
        functions = {name: Measure(path, options.get(name, {})) for name, path in BUILT_IN.items()}
        functions |= {name: Measure(reward.function, reward.options) for name, reward in (self.own or {}).items()}
        return {name: functions[name] for name in self.part_weights}


__all__ = ["PendingRewards", "ReplyRewards", "RewardFailedError", "submit_rewards"]

# What a batch of replies earned; the loop of this task knows it by this name.
ReplyRewards = GroupRewards


def submit_rewards(
    params: RewardParams, pool: RewardPool, *, replies: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]
) -> PendingRewards:
    """Begin to measure every part of every reply and return at once.

    Args:
        params: parts, weights, the rule for failures.
        pool: measures; its values do not depend on how many processes it has.
        replies: P groups of G texts.
        answers: P lists of at least one reference answer.

    Raises:
        ValueError: for groups of different or no size, or for other than one non-empty list of answers per group.
    """
    check_groups(replies, name="replies")
    if len(answers) != len(replies):
        raise ValueError(f"answers must have one row per group, got {len(answers)} for {len(replies)}; give each prompt its own")
    empty = [row for row, texts in enumerate(answers) if isinstance(texts, str) or not texts]
    if empty:
        raise ValueError(
            f"the answers of prompt {empty[0]} must be a list of at least one text, got {answers[empty[0]]!r}; correct the row"
        )
    subjects = [reply for group in replies for reply in group]
    references = [texts for group, texts in zip(replies, answers, strict=True) for _ in group]
    measures: Mapping[str, Measure] = params.measures
    futures = {name: pool.submit(measure, subjects, references) for name, measure in measures.items()}
    return PendingRewards(params.part_weights, params.failure, futures=futures, subjects=Subjects(replies, noun="reply"))
