"""Hold drawn replies: tokens, log-probabilities, and the tokens that could have been drawn."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts


def is_end(tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Mark the tokens that end a reply, bool of the shape of the tokens; ``ends`` are (*end_ids, pad_id)."""
    return torch.isin(tokens, torch.tensor(ends[:-1], device=tokens.device))


@dataclass(frozen=True)
class ReplyRollouts(Rollouts):
    """The drawn replies.

    Actions are token ids, the end among them; after it they are ``pad_id``, and logprobs are 0. A reply without an end was cut
    at L tokens.

    Attributes:
        kept: uint8 [P, G, L, ceil(V / 8)], the tokens that top-k and top-p left at each decision, packed (``pack``);
            None where all were left.
    """

    kept: Tensor | None = None


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
