"""Dynamic sampling: draw again for the prompts whose samples all earned the same, because such a group teaches nothing.

How this differs from the paper: DAPO fills the batch with other prompts until it is full; here the same prompts are drawn
again a bounded number of times, so that batch size and order of the data stay as they are and nothing is kept between steps.
A prompt on which the policy nearly always succeeds or fails is thereby shown more often with its rare outcome.
Source: DAPO, arXiv 2503.14476, section 3.2.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.types import Rollouts

Draw = Callable[[int], tuple[Rollouts, Tensor]]


@dataclass(frozen=True)
class ResampleReport:
    """Outcome of dynamic sampling, in numbers of prompts: how many were drawn again, and how many still tie.

    Attributes:
        tied_before: groups without a signal in the first draw.
        tied_after: groups without a signal that are left.
        attempts: further draws, 0..max_retries.
    """

    tied_before: int
    tied_after: int
    attempts: int


def resample_tied(
    rollouts: Rollouts,
    rewards: Tensor,
    *,
    draw: Draw,
    max_retries: int,
    tie_tolerance: float = 1e-8,
) -> tuple[Rollouts, Tensor, ResampleReport]:
    """Replace tied groups by fresh ones that are not tied, while there are any and retries remain.

    A group keeps its place, a group with a signal stays as it is, and so does a tied one for which every fresh draw ties too.

    Args:
        rollouts: [P, G, L], not changed.
        rewards: [P, G], NaN where a sample was not scored; not changed.
        draw: called with the number of the attempt, 1..max_retries; returns rollouts and rewards of the whole batch, of
            the same prompts. Its generator is to be derived from (seed, step, attempt), so that a resumed run draws the same.
        max_retries: further draws at most; 0 switches the drawing off and the report stays.
        tie_tolerance: as in ``compute_advantages``; a group with no scored sample counts as tied.

    Returns:
        Rollouts and rewards with whole groups replaced, and the report.

    Raises:
        ValueError: if ``max_retries`` is negative, or a draw has another shape (names the attempt).
    """
    if max_retries < 0:
        raise ValueError(
            f"max_retries must be at least 0, got {max_retries}; use 0 for no further draw"
        )
    is_tied = find_silent(rewards, tie_tolerance)  # [P]
    tied = before = int(is_tied.sum())
    attempt = 0
    while tied and attempt < max_retries:
        attempt += 1
        fresh, fresh_rewards = draw(attempt)
        wanted = [list(rollouts.actions.shape), list(rewards.shape)]
        found = [list(fresh.actions.shape), list(fresh_rewards.shape)]
        if found != wanted:
            raise ValueError(
                f"rollouts and rewards of a further draw must have the shapes of the first, {wanted}, got {found} in attempt "
                f"{attempt}; draw the whole batch with a fixed number of decisions"
            )
        is_taken = is_tied & ~find_silent(fresh_rewards, tie_tolerance)  # [P]
        rollouts, rewards = (
            _take(rollouts, fresh, is_taken),
            _take_rows(rewards, fresh_rewards, is_taken),
        )
        is_tied = is_tied & ~is_taken
        tied = int(is_tied.sum())
    return rollouts, rewards, ResampleReport(before, tied, attempt)


def find_silent(rewards: Tensor, tie_tolerance: float = 1e-8) -> Tensor:
    """Find groups that teach nothing, bool [P]: their scored rewards tie (``compute_advantages``), or none is scored."""
    is_tied = compute_advantages(rewards, method="mean_only", tie_tolerance=tie_tolerance).is_tied
    return is_tied | rewards.isnan().all(dim=1)


def _take(old: Rollouts, new: Rollouts, is_taken: Tensor) -> Rollouts:
    """Take whole groups over with everything that a task's own rollouts say about them."""
    parts = {
        field.name: (getattr(old, field.name), getattr(new, field.name)) for field in fields(old)
    }
    taken = {
        name: _take_rows(*pair, is_taken)
        for name, pair in parts.items()
        if isinstance(pair[0], Tensor)
    }
    return replace(old, **taken)


def _take_rows(old: Tensor, new: Tensor, is_taken: Tensor) -> Tensor:
    # [P] -> [P, 1, ...]: one flag for everything of a group.
    return torch.where(is_taken.to(old.device).reshape(-1, *[1] * (old.ndim - 1)), new, old)
