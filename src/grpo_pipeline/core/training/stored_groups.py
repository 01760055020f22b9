"""Cut rollouts into groups to store, and put stored groups into a later batch.

Every group keeps the log-probabilities of the policy that drew it (the behaviour policy).

How this differs from the papers: whole groups are stored, not single samples, so that an advantage is still measured against
its own group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts


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


def _own_fields(rollouts: Rollouts) -> dict[str, Tensor]:
    """Return the tensors of a task's own rollouts beside those that all rollouts have; one that is None is absent."""
    shared = {f.name for f in fields(Rollouts)}
    found = {f.name: getattr(rollouts, f.name) for f in fields(rollouts) if f.name not in shared}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _put(target: Tensor, index: Tensor, parts: Sequence[Tensor]) -> Tensor:
    # n groups [G, ...] become [n, G, ...] and take the places of prompts in [P, G, ...].
    return target.index_copy(0, index, torch.stack([part.to(target) for part in parts]))
