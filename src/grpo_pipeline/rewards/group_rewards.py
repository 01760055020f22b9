"""Collect the pending rewards of groups of samples: named components [P, G].

A failed reward is never a 0: it is left out, gets a stated penalty or stops the run. It is counted with its cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rewards import apply_failure_rule
from grpo_pipeline.rewards.functions import shorten
from grpo_pipeline.rewards.params import Failure
from grpo_pipeline.rewards.pool import CollectedRewards


class RewardFailedError(RuntimeError):
    """A reward could not be measured, and the rule is ``stop``."""


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of P x G samples.

    Attributes:
        components: name -> float64 [P, G], detached; NaN (not scored) where the component failed under the rule ``exclude``, and
            where the sample was not measured.
        weights: name -> weight, the same names.
        is_failed: name -> bool [P, G], True where the component could not be measured.
        causes: name -> why, of the first sample that it could not be measured of: function, sample, what happened.
    """

    components: Mapping[str, Tensor]
    weights: Mapping[str, float]
    is_failed: Mapping[str, Tensor]
    causes: Mapping[str, str]

    @property
    def failures(self) -> dict[str, int]:
        """Count the samples without a value of each component."""
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
        """Positions of the measured samples."""
        return np.arange(self.shape[0] * self.shape[1]) if self.places is None else self.places


class PendingRewards:
    """Pending rewards; the next batch can be sampled until ``result`` is called."""

    def __init__(
        self,
        weights: Mapping[str, float],
        failure: Failure,
        *,
        futures: Mapping[str, Future[CollectedRewards]],
        subjects: Subjects,
    ) -> None:
        """Store the futures and the rules that join their values."""
        self._weights, self._failure = dict(weights), failure
        self._futures, self._subjects = futures, subjects

    def done(self) -> bool:
        """Check whether ``result`` would return at once."""
        return all(future.done() for future in self._futures.values())

    def result(self) -> GroupRewards:
        """Wait for all components and apply the rule for failures to each.

        Raises:
            RewardFailedError: if a component could not be measured and the rule is ``stop``.
            RewardPoolError: if a process cannot be started or the pool was closed.
        """
        measured = {name: future.result() for name, future in self._futures.items()}
        if self._failure == "stop":
            for name, cause in self._first_causes(measured):
                raise RewardFailedError(
                    f"reward {name!r} must score every {self._subjects.noun} with failure = stop, got no value from {cause}; "
                    "correct the function, or use failure = exclude"
                )
        is_failed = {
            name: self._spread(np.isnan(found.values), False) for name, found in measured.items()
        }
        components = {name: self._spread(found.values, np.nan) for name, found in measured.items()}
        return GroupRewards(
            components={
                name: replace_failed(
                    component, is_failed[name], self._failure, name=f"reward component {name!r}"
                )
                for name, component in components.items()
            },
            weights=self._weights,
            is_failed=is_failed,
            causes=dict(self._first_causes(measured)),
        )

    def _spread(self, values: NDArray[np.generic], absent: float | bool) -> Tensor:
        """Spread the values over [P, G], at the places that were measured."""
        rows, columns = self._subjects.shape
        spread = np.full(rows * columns, absent, dtype=values.dtype)
        spread[self._subjects.measured] = values
        return torch.from_numpy(spread).reshape(rows, columns)

    def _first_causes(self, measured: Mapping[str, CollectedRewards]) -> Iterator[tuple[str, str]]:
        """Yield (component, cause) of each component that failed, in the words of its first sample."""
        texts = [text for group in self._subjects.groups for text in group]
        for name, found in measured.items():
            pairs = zip(self._subjects.measured.tolist(), found.causes, strict=True)
            first = next(((place, cause) for place, cause in pairs if cause is not None), None)
            if first is not None:
                yield (
                    name,
                    f"{found.function} on the {self._subjects.noun} {shorten(texts[first[0]])}: {first[1]}",
                )


def replace_failed(
    component: Tensor, is_failed: Tensor, failure: Failure, *, name: str = "component"
) -> Tensor:
    """Put a number, or NaN (not scored) without one, in the place of failed samples; [P, G], bool [P, G] -> float64 [P, G]."""
    if isinstance(failure, float):
        return apply_failure_rule(component, is_failed, rule="penalty", penalty=failure, name=name)
    return apply_failure_rule(component, is_failed, rule="exclude", name=name)


def check_groups(groups: Sequence[Sequence[object]], *, name: str) -> None:
    """Refuse groups of different sizes, empty groups, and no groups.

    Raises:
        ValueError: then; ``name`` says of what.
    """
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1 or not sizes[0]:
        raise ValueError(
            f"{name} must be groups of one size, got sizes {sizes}; sample the same number for every prompt"
        )
