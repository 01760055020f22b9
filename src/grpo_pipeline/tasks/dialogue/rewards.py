"""Rewards of groups of sampled replies: named parts [P, G], each by its function, with a rule for what could not be measured.

What differs from public versions: the F1 that is optimised is the F1 that is reported (``f1.f1``), and a reward that fails
is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.core.rewards import FailureRule, apply_failure_rule
from grpo_pipeline.tasks.dialogue.reward_params import FailureParams, RewardParams
from grpo_pipeline.tasks.reward_measure import Measure
from grpo_pipeline.tasks.reward_pool import Measured, RewardPool


class RewardFailedError(RuntimeError):
    """A reward could not be measured, and the rule is ``stop``."""


@dataclass(frozen=True)
class ReplyRewards:
    """The rewards of P x G replies.

    Attributes:
        parts: name -> float64 [P, G], detached; NaN (not scored) where the part failed under the rule ``exclude``.
        weights: name -> weight, the same names.
        is_failed: name -> bool [P, G], True where the part could not be measured.
        causes: different sentences that say why, in the order of their first reply.
    """

    parts: Mapping[str, Tensor]
    weights: Mapping[str, float]
    is_failed: Mapping[str, Tensor]
    causes: tuple[str, ...]

    @property
    def failures(self) -> dict[str, int]:
        """How many replies each part could not be measured of."""
        return {name: int(mask.sum()) for name, mask in self.is_failed.items()}


class PendingRewards:
    """Rewards that are being measured; the next batch can be sampled until ``result`` is asked for."""

    def __init__(self, params: RewardParams, futures: Mapping[str, Future[Measured]], replies: Sequence[Sequence[str]]) -> None:
        """Keep what is needed to put the values together."""
        self._params, self._futures, self._replies = params, futures, replies

    def done(self) -> bool:
        """Whether ``result`` would return at once."""
        return all(future.done() for future in self._futures.values())

    def result(self) -> ReplyRewards:
        """Wait for all parts and apply the rule for failures to each.

        Raises:
            RewardFailedError: if a part could not be measured and the rule is ``stop``.
            RewardPoolError: if a process cannot be started or the pool was closed.
        """
        measured = {name: future.result() for name, future in self._futures.items()}
        causes = {name: [cause for cause in found.causes if cause is not None] for name, found in measured.items()}
        shape = (len(self._replies), len(self._replies[0]))
        if self._params.failure.rule == "stop":
            self._stop_at_failure(measured, shape[1])
        values = {name: torch.from_numpy(found.values.copy()).reshape(shape) for name, found in measured.items()}
        is_failed = {name: part.isnan() for name, part in values.items()}
        sentences = [f"reward {name!r}: {cause}" for name, found in causes.items() for cause in found]
        return ReplyRewards(
            parts={name: _apply_rule(part, is_failed[name], failure=self._params.failure) for name, part in values.items()},
            weights=self._params.part_weights,
            is_failed=is_failed,
            causes=tuple(dict.fromkeys(sentences)),
        )

    def _stop_at_failure(self, measured: Mapping[str, Measured], group_size: int) -> None:
        for name, found in measured.items():
            for row, cause in enumerate(found.causes):
                if cause is not None:
                    prompt, sample = divmod(row, group_size)
                    raise RewardFailedError(
                        f"reward {name!r} must score every reply under rule 'stop', got none for sample {sample} of prompt "
                        f"{prompt} ({self._replies[prompt][sample]!r}): {cause}; correct the reward, or use rule 'exclude'"
                    )


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
    sizes = sorted({len(group) for group in replies})
    if len(sizes) != 1 or not sizes[0]:
        raise ValueError(f"replies must be groups of one size, got sizes {sizes}; sample the same number for every prompt")
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
    return PendingRewards(params, futures, replies)


def _apply_rule(part: Tensor, is_failed: Tensor, *, failure: FailureParams) -> Tensor:
    rule: FailureRule = "penalty" if failure.rule == "penalty" else "exclude"  # under "stop" nothing has failed
    return apply_failure_rule(part, is_failed, rule=rule, penalty=failure.penalty or 0.0)
