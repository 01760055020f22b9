"""Rewards of groups of samples that are being measured: named parts [P, G], with a rule for what could not be measured.

A reward that fails is never a 0: it is left out, pays a stated penalty or stops the run, and is counted with its cause.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rewards import FailureRule, apply_failure_rule
from grpo_pipeline.tasks.reward_params import FailureParams
from grpo_pipeline.tasks.reward_pool import Measured


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
        causes: different sentences that say why, in the order of their first sample.
    """

    parts: Mapping[str, Tensor]
    weights: Mapping[str, float]
    is_failed: Mapping[str, Tensor]
    causes: tuple[str, ...]

    @property
    def failures(self) -> dict[str, int]:
        """How many samples each part could not be measured of."""
        return {name: int(mask.sum()) for name, mask in self.is_failed.items()}


@dataclass(frozen=True)
class Subjects:
    """What is measured.

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
        sentences = [
            f"reward {name!r}: {cause}" for name, found in measured.items() for cause in found.causes if cause is not None
        ]
        return GroupRewards(
            parts={name: _apply_rule(part, is_failed[name], failure=self._failure) for name, part in parts.items()},
            weights=self._weights,
            is_failed=is_failed,
            causes=tuple(dict.fromkeys(sentences)),
        )

    def _spread(self, values: NDArray[np.generic], absent: float | bool) -> Tensor:
        """Return [P, G] with the values at the places that were measured."""
        rows, columns = self._subjects.shape
        spread = np.full(rows * columns, absent, dtype=values.dtype)
        spread[self._subjects.measured] = values
        return torch.from_numpy(spread).reshape(rows, columns)

    def _stop_at_failure(self, measured: Mapping[str, Measured]) -> None:
        group_size, noun = self._subjects.shape[1], self._subjects.noun
        for name, found in measured.items():
            for place, cause in zip(self._subjects.measured.tolist(), found.causes, strict=True):
                if cause is not None:
                    prompt, sample = divmod(place, group_size)
                    text = self._subjects.groups[prompt][sample]
                    raise RewardFailedError(
                        f"reward {name!r} must score every {noun} under rule 'stop', got none for sample {sample} of prompt "
                        f"{prompt} ({text!r}): {cause}; correct the reward, or use rule 'exclude'"
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
