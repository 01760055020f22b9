"""Attend with the samples of a group to the keys and values of their prompt, stored once per prompt.

How this differs from public versions: those copy the encoder's output, and each decoder layer's keys and values of it, for every
sample. Here the queries of a group are joined, as if they were a single longer text:

    softmax(q k' + bias) v,    q [P*G, h, T, d] -> [P, h, G*T, d],    k, v [P, h, S, d]

The result is the same, since cross-attention depends on neither order nor position (T5 has no position bias there).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NAME = "grpo_pipeline_shared"
SHORT = 10_000  # queries x keys: measured about where the two meet, with four heads of 16


def register() -> None:
    """Register the attention with transformers under ``NAME``; masks must then have four axes."""
    # Imported here, so that modules that only read texts need no library.
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, shared_attention)


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with shared keys and values per group of queries, if there are fewer of them than queries.

    Args:
        module: not used, but passed by transformers.
        query: [N, h, T, d].
        key, value: [N, h, S, d], or [P, h, S, d] where N = P * G and rows of a group are adjacent.
        attention_mask: added to the scores, broadcasts to [N or P, h, T, S]; shared keys need the same for each query.
        scaling: multiplies the scores; None: 1 / sqrt(d).
        position_bias: [1, h, T, S], added where keys are not shared.
        kwargs: further arguments of transformers, not used.

    Returns:
        [N, T, h, d], and None for the weights.
    """
    is_shared = len(query) != len(key)
    bias = (
        attention_mask
        if is_shared or position_bias is None
        else _add(position_bias, attention_mask)
    )
    bias = None if bias is None else bias.to(query.dtype)
    if not is_shared:
        return _attend(query, key, value, bias, scaling).transpose(1, 2).contiguous(), None
    (rows, heads, width, size), prompts = query.shape, len(key)
    # [P, h, G, T, d], so that the queries of a group are adjacent.
    groups = query.view(prompts, rows // prompts, heads, width, size).transpose(1, 2)
    # [P, h, G * T, d]: all queries of a group as a single text.
    folded = groups.reshape(prompts, heads, -1, size)
    out = _attend(folded, key, value, bias, scaling)  # [P, h, G * T, d]
    # [P, h, G * T, d] -> [P, G, T, h, d].
    groups = out.view(prompts, heads, rows // prompts, width, size).permute(0, 2, 3, 1, 4)
    return groups.reshape(rows, width, heads, size), None  # [N, T, h, d]


def additive_mask(is_seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Build an additive mask: 0 where is_seen, a very negative number elsewhere.

    The number is half of the lowest one, so that adding a position bias does not reach -inf. A row that sees nothing (padding)
    gives a mean and no NaN (test_padding_never_makes_nan).
    """
    return torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device).masked_fill(
        ~is_seen, torch.finfo(dtype).min / 2
    )


def causal_mask(width: int, like: Tensor) -> Tensor:
    """Build the additive mask [1, 1, T, T] in which a token sees itself and the tokens before it."""
    is_seen = torch.ones(width, width, dtype=torch.bool, device=like.device).tril()
    return additive_mask(is_seen, like.dtype)[None, None]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float | None
) -> Tensor:
    """Compute softmax(scaling q k' + bias) v, written out where torch's kernel for the CPU is slower.

    That kernel is made for long texts and has no gradient of the bias. torch then falls back to a softmax that checks for rows
    that see nothing. ``additive_mask`` makes no such rows.
    """
    is_short = query.shape[-2] * key.shape[-2] <= SHORT
    if query.device.type != "cpu" or bias is None or not (is_short or bias.requires_grad):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=scaling
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query if scale == 1.0 else query * scale) @ key.transpose(-1, -2)  # q k': [..., T, S]
    return (scores + bias).softmax(dim=-1) @ value


def _add(bias: Tensor, mask: Tensor | None) -> Tensor:
    return bias if mask is None else bias + mask
