"""Rewards of groups of samples that are being measured: named parts [P, G], with a rule for what could not be measured.

A reward that fails is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rewards import FailureRule, apply_failure_rule
from grpo_pipeline.tasks.reward_measure import Measure, shorten
from grpo_pipeline.tasks.reward_params import FailureParams
from grpo_pipeline.tasks.reward_pool import Measured, RewardPool

# Texts of the training data that rewards of the user's are called on before anything is trained.
TRIED = 8


class RewardFailedError(RuntimeError):
    """A reward could not be measured, and the rule is ``stop``."""


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of P x G samples.

    Attributes:
        parts: name -> float64 [P, G], detached; NaN (not scored) where the part failed under the rule ``exclude``, and where
            the sample was not measured.
        weights: name -> weight, the same names.
        is_failed: name -> bool [P, G], True where the part could not be measured.
        causes: name -> why, of the first sample that it could not be measured of: function, sample, what happened.
    """

    parts: Mapping[str, Tensor]
    weights: Mapping[str, float]
    is_failed: Mapping[str, Tensor]
    causes: Mapping[str, str]

    @property
    def failures(self) -> dict[str, int]:
        """How many samples each part could not be measured of."""
        return {name: int(mask.sum()) for name, mask in self.is_failed.items()}


@dataclass(frozen=True)
class Subjects:
    """The samples to be measured.

    Attributes:
        groups: P groups of G texts.
        noun: what a person calls one of them.
        places: positions p * G + g of those that are measured, in the order in which they were submitted; None for all.
    """

    groups: Sequence[Sequence[str]]
    noun: str
    places: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """P and G."""
        return len(self.groups), len(self.groups[0])

    @property
    def measured(self) -> NDArray[np.int64]:
        """Positions of those that are measured."""
        return np.arange(self.shape[0] * self.shape[1]) if self.places is None else self.places


class PendingRewards:
    """Rewards that are being measured; the next batch can be sampled until ``result`` is asked for."""

    def __init__(
        self, weights: Mapping[str, float], failure: FailureParams, *, futures: Mapping[str, Future[Measured]], subjects: Subjects
    ) -> None:
        """Keep what is needed to put the values together."""
        self._weights, self._failure = dict(weights), failure
        self._futures, self._subjects = futures, subjects

    def done(self) -> bool:
        """Whether ``result`` would return at once."""
        return all(future.done() for future in self._futures.values())

    def result(self) -> GroupRewards:
        """Wait for all parts and apply the rule for failures to each.

        Raises:
            RewardFailedError: if a part could not be measured and the rule is ``stop``.
            RewardPoolError: if a process cannot be started or the pool was closed.
        """
        measured = {name: future.result() for name, future in self._futures.items()}
        if self._failure.rule == "stop":
            self._stop_at_failure(measured)
        is_failed = {name: self._spread(np.isnan(found.values), False) for name, found in measured.items()}
        parts = {name: self._spread(found.values, np.nan) for name, found in measured.items()}
        return GroupRewards(
            parts={name: _apply_rule(part, is_failed[name], failure=self._failure) for name, part in parts.items()},
            weights=self._weights,
            is_failed=is_failed,
            causes=dict(self._first_causes(measured)),
        )

    def _spread(self, values: NDArray[np.generic], absent: float | bool) -> Tensor:
        """Return [P, G] with the values at the places that were measured."""
        rows, columns = self._subjects.shape
        spread = np.full(rows * columns, absent, dtype=values.dtype)
        spread[self._subjects.measured] = values
        return torch.from_numpy(spread).reshape(rows, columns)

    def _first_causes(self, measured: Mapping[str, Measured]) -> Iterator[tuple[str, str]]:
        """Yield (part, why) of each part that failed, in the words of its first sample."""
        texts = [text for group in self._subjects.groups for text in group]
        for name, found in measured.items():
            pairs = zip(self._subjects.measured.tolist(), found.causes, strict=True)
            first = next(((place, cause) for place, cause in pairs if cause is not None), None)
            if first is not None:
                yield name, f"{found.function} on the {self._subjects.noun} {shorten(texts[first[0]])}: {first[1]}"

    def _stop_at_failure(self, measured: Mapping[str, Measured]) -> None:
        for name, cause in self._first_causes(measured):
            raise RewardFailedError(
                f"reward {name!r} must score every {self._subjects.noun} under rule 'stop', got no value from {cause}; correct "
                "the function, or use rule 'exclude'"
            )


def try_rewards(
    own: Mapping[str, Measure], pool: RewardPool, *, subjects: Sequence[str], references: Sequence[Sequence[str]], task: str
) -> None:
    """Call the rewards of the user's on a few texts of the training data, before anything is trained.

    Raises:
        RewardFailedError: for a reward that scores none of them.
        RewardPoolError: for one that gives another value for the same text, or cannot be imported.
    """
    for name, measure in own.items():
        found = pool.submit(measure, subjects, references).result()
        if len(subjects) and all(cause is not None for cause in found.causes):
            raise RewardFailedError(
                f"reward {name!r} must score texts of the training data, got no value for any of {len(subjects)} from "
                f"{measure.function}, the first one {shorten(subjects[0])}: {found.causes[0]}; correct the function, or take "
                f"it out of {task}.rewards.own"
            )


def check_groups(groups: Sequence[Sequence[object]], *, name: str) -> None:
    """Refuse groups of different or no size, and no group at all.

    Raises:
        ValueError: then; ``name`` says of what.
    """
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1 or not sizes[0]:
        raise ValueError(f"{name} must be groups of one size, got sizes {sizes}; sample the same number for every prompt")


def _apply_rule(part: Tensor, is_failed: Tensor, *, failure: FailureParams) -> Tensor:
    rule: FailureRule = "penalty" if failure.rule == "penalty" else "exclude"  # under "stop" nothing has failed
    return apply_failure_rule(part, is_failed, rule=rule, penalty=failure.penalty or 0.0)
