"""Store groups of samples for a while and draw some of them again.

How this differs from the papers: no group is drawn once it is older than a bound.
Source: selective sample replay, arXiv 2504.08837; proportional priorities, arXiv 1511.05952, section 3.3.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.training.stored_groups import StoredGroup

TENSORS = ("actions", "behaviour_logprobs", "is_valid")
SCALARS = ("row", "step", "temperature", "signal")


@dataclass(frozen=True)
class ReplayState:
    """The content of a buffer for a checkpoint.

    Attributes:
        tensors: "<position>.<field>" -> tensor, on the CPU; "<position>.more.<field>" for a task's own fields.
        scalars: JSON values: the two bounds, and row, step, temperature and signal of each group.
    """

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any]


class ReplayBuffer:
    """Informative groups of past batches, on the CPU and detached; mutable, and the only owner of its tensors.

    A group stays after it was drawn, until it is stale or evicted.
    """

    def __init__(self, capacity: int, max_age_steps: int) -> None:
        """Set the bounds.

        Args:
            capacity: groups that are kept, at least 1.
            max_age_steps: a group of batch s is last drawn in batch s + max_age_steps; at least 1.

        Raises:
            ValueError: for a bound below 1.
        """
        for name, bound in (("capacity", capacity), ("max_age_steps", max_age_steps)):
            if bound < 1:
                raise ValueError(
                    f"{name} of the replay must be at least 1, got {bound}; leave the replay out to switch it off"
                )
        self.capacity = capacity
        self.max_age_steps = max_age_steps
        self._groups: list[StoredGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[StoredGroup, ...]:
        """Return what is stored, in the order in which it came; do not write into the tensors."""
        return tuple(self._groups)

    def add(self, groups: Iterable[StoredGroup]) -> None:
        """Store copies of the groups that teach something (signal > 0), then make room.

        First go the groups that are stale beside the newest one. If there are still too many, the one with the smallest
        signal goes; among equal signals the oldest, among those of one step the one that came first.

        Raises:
            ValueError: for a signal that is negative or not finite, or shapes that disagree (names the row); nothing is added.
        """
        offered = list(groups)
        for group in offered:
            _check_group(group)
        self._groups += [_own(group) for group in offered if group.signal > 0]
        self._drop_stale(max((group.step for group in self._groups), default=0))
        # First to go: the smallest signal, then the oldest step, then the first that came.
        order = sorted(
            range(len(self)), key=lambda i: (self._groups[i].signal, self._groups[i].step, i)
        )
        evicted = set(order[: max(0, len(self) - self.capacity)])
        self._groups = [group for i, group in enumerate(self._groups) if i not in evicted]

    def draw(self, n: int, *, step: int, generator: torch.Generator) -> list[StoredGroup]:
        """Draw groups without replacement, each next one with probability proportional to its signal.

        Drops what is stale at ``step`` first.

        Args:
            n: groups wanted, at least 0.
            step: number of the present batch.
            generator: the only source of randomness; on the CPU.

        Returns:
            n groups, or all of them in random order where fewer are stored; do not write into their tensors.

        Raises:
            ValueError: if n is negative, or a stored group comes from a later batch than ``step``.
        """
        if n < 0:
            raise ValueError(
                f"the number of groups to replay must be at least 0, got {n}; correct the parameter"
            )
        # A group of the future means that the buffer belongs to another run.
        newest = max((group.step for group in self._groups), default=step)
        if newest > step:
            raise ValueError(
                f"step must not lie before the stored groups, got {step} after {newest}; use a fresh buffer"
            )
        self._drop_stale(step)
        count = min(n, len(self))
        if count == 0:
            return []
        signals = torch.tensor([group.signal for group in self._groups], dtype=torch.float64)
        chosen = torch.multinomial(signals, count, replacement=False, generator=generator)
        return [self._groups[i] for i in chosen.tolist()]

    def state(self) -> ReplayState:
        """Copy the content; a buffer that loads it draws and evicts bit-identically."""
        groups = dict(enumerate(self._groups))
        tensors = {
            f"{i}.{name}": getattr(group, name).clone()
            for i, group in groups.items()
            for name in TENSORS
        }
        tensors |= {
            f"{i}.more.{name}": part.clone()
            for i, group in groups.items()
            for name, part in group.more.items()
        }
        scalars = [{name: getattr(group, name) for name in SCALARS} for group in groups.values()]
        return ReplayState(
            tensors,
            {"capacity": self.capacity, "max_age_steps": self.max_age_steps, "groups": scalars},
        )

    def load(self, state: ReplayState) -> None:
        """Replace the content by copies of what ``state`` returned.

        Raises:
            ValueError: if the state comes from a buffer with other bounds.
        """
        found = {name: state.scalars[name] for name in ("capacity", "max_age_steps")}
        own = {"capacity": self.capacity, "max_age_steps": self.max_age_steps}
        if found != own:
            raise ValueError(
                f"the stored replay must have the bounds {own}, got {found}; use the same parameters"
            )
        self._groups = [
            _from_state(state.tensors, i, scalars)
            for i, scalars in enumerate(state.scalars["groups"])
        ]

    def _drop_stale(self, step: int) -> None:
        self._groups = [group for group in self._groups if step - group.step <= self.max_age_steps]


def _check_group(group: StoredGroup) -> None:
    if not (math.isfinite(group.signal) and group.signal >= 0):
        raise ValueError(
            f"the signal of a group must be finite and >= 0, got {group.signal} for row {group.row}; use the mean of |A|"
        )
    shapes = [list(getattr(group, name).shape) for name in TENSORS]
    shapes += [[*part.shape[:1], *shapes[0][1:]] for part in group.more.values()]
    if len(shapes[0]) != 2 or shapes != [shapes[0]] * len(shapes):
        raise ValueError(
            f"the tensors of a group must share one shape [G, L], got {shapes} for row {group.row}; store whole groups"
        )


def _own(group: StoredGroup) -> StoredGroup:
    kept: dict[str, Any] = {name: _copied(getattr(group, name)) for name in TENSORS}
    return replace(group, **kept, more={name: _copied(part) for name, part in group.more.items()})


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _from_state(
    tensors: Mapping[str, Tensor], position: int, scalars: Mapping[str, Any]
) -> StoredGroup:
    kept: dict[str, Any] = {name: tensors[f"{position}.{name}"].clone() for name in TENSORS}
    prefix = f"{position}.more."
    more = {
        name.removeprefix(prefix): part.clone()
        for name, part in tensors.items()
        if name.startswith(prefix)
    }
    return StoredGroup(**kept, **{name: scalars[name] for name in SCALARS}, more=more)
