"""Attend with the samples of a group to the keys and values of their prompt, stored once per prompt.

How this differs from public versions: there the encoder's output is copied for each sample, and so are the keys and values that
every decoder layer computes from it. Here the queries of a group are laid behind each other, as if they were one longer text:

    softmax(q k' + bias) v,    q [P*G, h, T, d] -> [P, h, G*T, d],    k, v [P, h, S, d]

which is the same number, since cross-attention knows neither order nor position (T5 has no position bias there).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NAME = "grpo_pipeline_shared"
SHORT = 10_000  # queries x keys: measured about where the two meet, with four heads of 16


def register() -> None:
    """Make the attention known to transformers under ``NAME``; masks must then be given with four axes."""
    # Here and not above: what reads texts alone needs no library.
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
    """Attend, with one set of keys and values per group of queries where there are fewer of them.

    Args:
        module: not used; transformers hands it over.
        query: [N, h, T, d].
        key, value: [N, h, S, d], or [P, h, S, d] where N = P * G and rows of a group are adjacent.
        attention_mask: added to the scores, broadcasts to [N or P, h, T, S]; shared keys need the same for each query.
        scaling: multiplies the scores; None: 1 / sqrt(d).
        position_bias: [1, h, T, S], added where keys are not shared.
        kwargs: what transformers hands to any attention.

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
    # [P, h, G, T, d], so that the queries of a group are laid behind each other.
    groups = query.view(prompts, rows // prompts, heads, width, size).transpose(1, 2)
    # [P, h, G * T, d]: all queries of a group as one text.
    folded = groups.reshape(prompts, heads, -1, size)
    out = _attend(folded, key, value, bias, scaling)  # [P, h, G * T, d]
    # [P, h, G * T, d] -> [P, G, T, h, d].
    groups = out.view(prompts, heads, rows // prompts, width, size).permute(0, 2, 3, 1, 4)
    return groups.reshape(rows, width, heads, size), None  # [N, T, h, d]


def additive_mask(is_seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where is_seen and a very negative number elsewhere.

    Half of the lowest number: a position bias can be added without reaching -inf, and a row that sees nothing (padding) is a
    mean and no NaN (test_padding_never_makes_nan).
    """
    return torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device).masked_fill(
        ~is_seen, torch.finfo(dtype).min / 2
    )


def causal_mask(width: int, like: Tensor) -> Tensor:
    """Return the additive mask [1, 1, T, T] in which a token sees itself and what is before it."""
    is_seen = torch.ones(width, width, dtype=torch.bool, device=like.device).tril()
    return additive_mask(is_seen, like.dtype)[None, None]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float | None
) -> Tensor:
    """Return softmax(scaling q k' + bias) v, written out where torch's kernel for the CPU is slower.

    That kernel is made for long texts, and has no gradient of the bias: torch then falls back to a softmax with checks for rows
    that see nothing. There are none here (``additive_mask``).
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
