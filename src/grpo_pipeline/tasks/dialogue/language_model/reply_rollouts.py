"""Hold drawn replies: tokens, log-probabilities, and the tokens that could have been drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts


def is_end(tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Mark the tokens that end a reply, bool of the shape of the tokens; ``ends`` are (*end_ids, pad_id)."""
    return torch.isin(tokens, torch.tensor(ends[:-1], device=tokens.device))


def has_ended(rollouts: Rollouts, ends: tuple[int, ...]) -> Tensor:
    """Mark the replies whose last decision is an end, bool [P, G]; the others were cut, or are empty."""
    ended = pad(is_end(rollouts.actions, ends) & rollouts.is_valid, (1, 0))  # [P, G, 1 + L]
    return ended.gather(-1, lengths_of(rollouts.is_valid)[..., None])[..., 0]


def lengths_of(is_valid: Tensor) -> Tensor:
    """Count the tokens up to the last decision of each reply, int64 [P, G]: between its decisions it may have read others."""
    places = torch.arange(1, is_valid.shape[-1] + 1, device=is_valid.device)
    return pad(is_valid * places, (1, 0)).amax(dim=-1)


@dataclass(frozen=True)
class ReplyRollouts(Rollouts):
    """The drawn replies.

    Actions are token ids, the end among them; after it they are ``pad_id``, and logprobs are 0. A reply without an end was cut
    at L tokens. In a conversation the tokens that an environment said stand among the actions; they are no decisions.

    Attributes:
        kept: uint8 [P, G, L, ceil(V / 8)], the tokens that top-k and top-p left at each decision, packed (``pack``);
            None where all were left.
        stories: int64 [P, G, n], numbers of the stories that the prompt was read with; None without a retriever.
    """

    kept: Tensor | None = None
    stories: Tensor | None = None


def nothing_written(start: Tensor, group_size: int) -> ReplyRollouts:
    """Build G empty replies to each of P prompts: the samples of an arm that learns from references alone.

    Args:
        start: [P], of the encoding; gives P and the device.
        group_size: G.
    """
    shape = (len(start), group_size, 0)
    actions = torch.zeros(shape, dtype=torch.int64, device=start.device)
    return ReplyRollouts(
        actions,
        torch.zeros(shape, device=start.device),
        torch.zeros_like(actions, dtype=torch.bool),
    )


def rows_of(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """Return actions and is_valid with a row for each sample, both [P * G, L]."""
    return rollouts.actions.flatten(0, 1), rollouts.is_valid.flatten(0, 1)


def in_groups(rollouts: Rollouts, values: Sequence[str]) -> PerPrompt:
    """Cut the values of P * G samples into a tuple of G of each prompt."""
    prompts, group_size, _ = rollouts.actions.shape
    return PerPrompt(tuple(values[p * group_size : (p + 1) * group_size]) for p in range(prompts))
