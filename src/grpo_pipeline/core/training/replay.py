"""Store groups of samples for a while and mix them into later batches, with a correction for the policy that drew them.

Every group keeps the log-probabilities of the policy that drew it (the behaviour policy). An update takes the proximal
policy, the one at its start, as the old policy of the clipped ratio, and multiplies each sample's advantage by an importance
weight from behaviour to proximal policy.

How this differs from the papers: whole groups are stored, not single samples, so that an advantage is still measured against
its own group; and no group is drawn once it is older than a bound.
Source: selective sample replay, arXiv 2504.08837; proportional priorities, arXiv 1511.05952, section 3.3.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.groups import check_decisions
from grpo_pipeline.core.policy_gradient.ratios import LOG_RATIO_BOUND
from grpo_pipeline.core.types import Rollouts

TENSORS = ("actions", "behaviour_logprobs", "is_valid")
SCALARS = ("row", "step", "temperature", "signal")


@dataclass(frozen=True, eq=False)
class StoredGroup:
    """The G samples of one prompt with what an off-policy update needs; two groups are equal only if they are one object.

    Attributes:
        row: number of the prompt in the training data.
        actions: int64 [G, L].
        behaviour_logprobs: [G, L], log-probability under the policy that drew the actions, at its temperature, nats.
        is_valid: bool [G, L], True where a decision was really taken.
        step: number of the batch in which the group was drawn.
        temperature: that of the draw.
        signal: how much the group teaches, at least 0, such as the mean of |A|.
        more: what a task's own rollouts say beside actions, logprobs and is_valid: field -> tensor [G, ...].
    """

    row: int
    actions: Tensor
    behaviour_logprobs: Tensor
    is_valid: Tensor
    step: int
    temperature: float
    signal: float
    more: Mapping[str, Tensor] = field(default_factory=dict)


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


def split_groups(
    rollouts: Rollouts, rows: Sequence[int], *, signal: Tensor, step: int, temperature: float
) -> list[StoredGroup]:
    """Cut a batch of rollouts into groups for ``ReplayBuffer.add``, as views.

    Args:
        rollouts: [P, G, L], as drawn; groups that were replayed themselves are not to be stored again as fresh ones.
        rows: P row numbers of the prompts.
        signal: [P], how much each group teaches.
        step: number of the batch.
        temperature: that of the draw.

    Raises:
        ValueError: if the numbers of rows, signals and prompts differ.
    """
    prompts = rollouts.actions.shape[0]
    if len(rows) != prompts or signal.shape != (prompts,):
        raise ValueError(
            f"rows and signal must have one entry for each of {prompts} prompts, got {len(rows)} and {list(signal.shape)}"
        )
    # One [G, L] of each kind for every prompt.
    parts = zip(
        rows, rollouts.actions, rollouts.logprobs, rollouts.is_valid, signal.tolist(), strict=True
    )
    more = _own_fields(rollouts)
    return [
        StoredGroup(
            int(row),
            actions,
            logprobs,
            is_valid,
            step=step,
            temperature=temperature,
            signal=taught,
            more={name: part[p] for name, part in more.items()},
        )
        for p, (row, actions, logprobs, is_valid, taught) in enumerate(parts)
    ]


def merge_groups(
    fresh: Rollouts, stored: Sequence[StoredGroup], positions: Sequence[int]
) -> Rollouts:
    """Put stored groups in the place of fresh ones; the given rollouts are not changed.

    Not checked: that the prompt at ``positions[i]`` of the batch is row ``stored[i].row``.

    Args:
        fresh: [P, G, L]; gives device and dtype.
        stored: groups of the same G and L.
        positions: for each stored group the prompt 0..P-1 whose place it takes, without repeats.

    Returns:
        Rollouts whose ``logprobs`` are those of the policy that drew each group; a task's own fields are merged likewise.

    Raises:
        ValueError: if the shapes or the task's own fields do not fit, or the positions are not distinct prompts of the batch.
    """
    prompts, *shape = fresh.actions.shape
    if (
        len(stored) != len(positions)
        or len(set(positions)) != len(positions)
        or not set(positions) <= set(range(prompts))
    ):
        raise ValueError(
            f"positions must be {len(stored)} distinct prompts of 0..{prompts - 1}, got {list(positions)}; one for each group"
        )
    for group in stored:
        if list(group.actions.shape) != shape:
            raise ValueError(
                f"stored groups must have the shape [G, L] = {shape} of the batch, got {list(group.actions.shape)} for row "
                f"{group.row}; keep group size and number of decisions fixed"
            )
    more = _own_fields(fresh)
    for group in stored:
        if group.more.keys() != more.keys():
            raise ValueError(
                f"stored groups must hold the fields {sorted(more)} of the fresh ones, got {sorted(group.more)} for row "
                f"{group.row}; draw all of them in one way"
            )
    if not stored:
        return fresh
    index = torch.tensor(list(positions), device=fresh.actions.device)  # [n], n stored groups
    return replace(
        fresh,
        actions=_put(fresh.actions, index, [group.actions for group in stored]),
        logprobs=_put(fresh.logprobs, index, [group.behaviour_logprobs for group in stored]),
        is_valid=_put(fresh.is_valid, index, [group.is_valid for group in stored]),
        **{
            name: _put(part, index, [group.more[name] for group in stored])
            for name, part in more.items()
        },
    )


def importance_weights(
    proximal_logprobs: Tensor, behaviour_logprobs: Tensor, is_valid: Tensor, *, cap: float | None
) -> Tensor:
    """Return the factor on each sample's advantage that corrects for the policy that drew it.

        w[p, g] = min(cap, exp(min(20, sum over valid L of (proximal - behaviour))))

    Without a cap the gradient at the proximal policy has the on-policy gradient as its expectation, for advantages whose
    baseline does not depend on the sample itself (leave-one-out; not the z-score of a group). A cap bounds the variance
    and biases towards the behaviour policy. Apply after normalisation of the advantages.
    Source: decoupled PPO, arXiv 2110.00641; truncation: IMPALA, arXiv 1802.01561, section 4.1 (there per decision).

    Args:
        proximal_logprobs: [P, G, L], of the stored actions under the policy at the start of the update.
        behaviour_logprobs: [P, G, L], under the policy that drew them.
        is_valid: bool [P, G, L]; what is not valid contributes exactly 0 to the sum, even if NaN.
        cap: largest weight, at least 1; None for no truncation.

    Returns:
        float64 [P, G], detached; exactly 1 where both log-probabilities are the same numbers, as for fresh groups.

    Raises:
        ValueError: if shapes differ, the cap is below 1, or a log-weight is NaN or +infinite (names the prompt and the sample).
    """
    check_decisions(
        is_valid, proximal_logprobs=proximal_logprobs, behaviour_logprobs=behaviour_logprobs
    )
    if cap is not None and not cap >= 1:
        raise ValueError(
            f"the cap of importance weights must be at least 1, got {cap}; a fresh sample weighs 1"
        )
    difference = proximal_logprobs.detach().double() - behaviour_logprobs.detach().double()
    log_weights = difference.masked_fill(~is_valid, 0.0).sum(dim=-1)  # [P, G]
    # A comparison that is False for NaN as well; -inf (an action that is no longer allowed) is the weight 0.
    is_bad = ~(log_weights < math.inf)  # [P, G]
    if bool(is_bad.any()):
        prompt, sample = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"importance weights must be finite, got the log {float(log_weights[prompt, sample])} for prompt {prompt}, sample "
            f"{sample}; look at the stored log-probabilities"
        )
    weights = log_weights.clamp(max=LOG_RATIO_BOUND).exp()
    return weights if cap is None else weights.clamp(max=cap)


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


def _own_fields(rollouts: Rollouts) -> dict[str, Tensor]:
    """Return the tensors of a task's own rollouts beside those that all rollouts have; one that is None is absent."""
    shared = {f.name for f in fields(Rollouts)}
    found = {f.name: getattr(rollouts, f.name) for f in fields(rollouts) if f.name not in shared}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


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


def _put(target: Tensor, index: Tensor, parts: Sequence[Tensor]) -> Tensor:
    # n groups [G, ...] become [n, G, ...] and take the places of prompts in [P, G, ...].
    return target.index_copy(0, index, torch.stack([part.to(target) for part in parts]))
