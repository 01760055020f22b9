"""Score decisions under the distribution that they were drawn from, without holding all logits at once.

A score is a log-probability and an entropy:

    z = (hidden @ weight.T + bias) / temperature      logprob = z_a - logsumexp(z over kept)      H = -sum over kept p log p

The kept set is that of sampling (``core.sampling.truncation``). Without a kept set, ``core.sampling.linear_logprobs`` computes
blocks of choices. With one, blocks of whole rows are computed, and again in the backward pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.sampling.truncation import action_logprobs, truncated_log_probs
from grpo_pipeline.tasks.dialogue.language_model.base import Head, logits_of
from grpo_pipeline.tasks.dialogue.language_model.packed_masks import unpack

# Logits of a block: 2**22 float32 numbers are 16 MiB, and log-softmax keeps a few such blocks.
BLOCK_NUMBERS = 2**22


class TokenScores(NamedTuple):
    """Log-probability of each action and entropy of its distribution, in nats, both of the actions' shape."""

    logprobs: Tensor
    entropy: Tensor


def score_tokens(
    hidden: Tensor,
    head: Head,
    actions: Tensor,
    *,
    temperature: float,
    kept: Tensor | None = None,
) -> TokenScores:
    """Score actions int64 [M] given hidden states [M, D], with gradient to hidden, weight and bias.

    Args:
        hidden: [M, D], or logits [M, V] where the head is None.
        head: of the language model.
        actions: int64 [M].
        temperature: temperature of sampling.
        kept: uint8 [M, ceil(V / 8)], mask of sampling (``packed_masks.pack``), or None if every choice was kept.
    """
    if kept is None and head is not None:
        weight, bias = head
        logprobs, entropy = chunked_logprobs(
            hidden, weight, actions, bias=bias, temperature=temperature
        )
        assert entropy is not None  # it was asked for
        return TokenScores(logprobs, entropy)
    # Blocks of whole rows, [rows, V] logits each; none is kept for the backward pass.
    rows = max(1, BLOCK_NUMBERS // (hidden.shape[1] if head is None else len(head[0])))
    starts = tuple(range(rows, len(hidden), rows))
    parts = [part.tensor_split(starts) for part in (hidden, actions)]
    masks = [None] * len(parts[0]) if kept is None else kept.tensor_split(starts)
    scored = [
        checkpoint(_score_block, h, head, a, k, temperature, use_reentrant=False)
        for h, a, k in zip(*parts, masks, strict=True)
    ]
    return TokenScores(*(torch.cat(part) for part in zip(*scored, strict=True)))


def _score_block(
    hidden: Tensor, head: Head, actions: Tensor, kept: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = logits_of(hidden, head)  # [rows, V]
    is_kept = None if kept is None else unpack(kept, logits.shape[-1])
    log_probs = truncated_log_probs(logits, temperature=temperature, kept=is_kept)
    return action_logprobs(log_probs, actions), entropy_of(log_probs)
