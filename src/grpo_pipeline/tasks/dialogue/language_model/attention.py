"""Attention in which the samples of a group share the keys and values of their prompt, stored once per prompt.

How this differs from public versions: there the encoder's output is copied for each sample, and so are the keys and values that
every decoder layer computes from it. Here the queries of a group are laid behind each other, as if they were one longer text:

    softmax(q k' + bias) v,    q [P*G, h, T, d] -> [P, h, G*T, d],    k, v [P, h, S, d]

which is the same number, since cross-attention knows neither order nor position (T5 has no position bias there).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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


# Attention of the replies of a group, which share their prompt's keys and values and each have their own.
#
# How this differs from public versions: there the keys of prompt and reply are one tensor per reply, so that a prompt's keys and
# values are copied G times, and copied again whenever the cache grows. Here they exist once per prompt:
#
#     p = softmax([q k_prompt' | q k_own'])        out = p_prompt v_prompt + p_own v_own
#
# one softmax over both parts, which is the number that one long tensor would give.
#
# Axes: P prompts, G replies of each, h heads of queries, c of keys and values, r = h / c of queries per head of keys, S tokens of
# a prompt, T tokens that ask, t own tokens that are asked, d width of a head. "Folded" means P * c matrices, one per prompt and
# head of keys, with the queries of all replies behind each other: row (g, r, T). Own keys are folded further, [P * c * G, t, d].

# Weights of one layer's attention that are kept for the backward pass: 2**24 float32 numbers are 64 MiB. More are computed again.
KEPT_NUMBERS = 2**24


@dataclass(frozen=True)
class Prompt:
    """Keys and values of P prompts, in one layer.

    Attributes:
        keys: [P, c, S, d].
        values: [P, c, S, d].
        bias: [P, 1, 1, S], added to the scores; None where no prompt has padding.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None


def attend_prompt(query: Tensor, keys: Tensor, values: Tensor, *, is_seen: Tensor) -> Tensor:
    """Attend causally inside prompts.

    Args:
        query: [P, h, S, d], already scaled.
        keys: [P, c, S, d], and values.
        values: see keys.
        is_seen: bool [P, S], False at padding.

    Returns:
        [P, S, h * d].
    """
    mask = None
    if not bool(is_seen.all()):
        width = is_seen.shape[1]
        order = torch.ones(width, width, dtype=torch.bool, device=is_seen.device).tril()
        mask = additive_mask(is_seen[:, None, None] & order, query.dtype)  # [P, 1, S, S]
    out = functional.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
        enable_gqa=query.shape[1] != keys.shape[1],
    )  # [P, h, S, d]
    return out.transpose(1, 2).flatten(2)


def attend_replies(query: Tensor, keys: Tensor, values: Tensor, prompt: Prompt) -> Tensor:
    """Attend to the prompt and, causally, to the reply itself: all T tokens at once.

    Args:
        query: [P * G, h, T, d], already scaled.
        keys: [P * G, c, T, d] of the replies.
        values: of the replies.
        prompt: what their prompts hold.

    Returns:
        [P * G, T, h * d].
    """
    prompts, heads = prompt.keys.shape[:2]
    rows, width = query.shape[1] // heads, query.shape[2]
    # Causal, the same for each of the r heads of queries that share a head of keys: [r * T, T].
    is_before = (
        torch.ones(width, width, dtype=torch.bool, device=query.device).tril().repeat(rows, 1)
    )
    bias = additive_mask(is_before, query.dtype)
    parts = (
        fold_queries(query, prompts, heads),
        prompt,
        fold_own(keys, prompts),
        fold_own(values, prompts),
        bias,
    )
    # Weights of all P * G * h * T queries over S + T keys; too many of them are computed again in the backward pass.
    numbers = query.shape[:3].numel() * (prompt.keys.shape[2] + width)
    if torch.is_grad_enabled() and numbers > KEPT_NUMBERS:
        folded = checkpoint(attend_folded, *parts, use_reentrant=False)
    else:
        folded = attend_folded(*parts)
    return unfold(folded, len(query) // prompts, rows, prompts)


def attend_folded(
    query: Tensor, prompt: Prompt, keys: Tensor, values: Tensor, own_bias: Tensor | None = None
) -> Tensor:
    """Attend with folded queries [P * c, G * r * T, d]; see the head of this file.

    Args:
        query: folded.
        prompt: what the prompts hold.
        keys: [P * c * G, t, d], own.
        values: [P * c * G, t, d], own.
        own_bias: [r * T, t], added to the scores of own tokens, or None.

    Returns:
        folded, as the query.
    """
    seen, width = prompt.keys.shape[2], keys.shape[1]
    to_prompt = torch.bmm(query, prompt.keys.flatten(0, 1).transpose(1, 2))  # [P * c, G * r * T, S]
    if prompt.bias is not None:
        # [P, c, G * r * T, S] + [P, 1, 1, S], then folded again.
        to_prompt = (to_prompt.view(*prompt.keys.shape[:2], -1, seen) + prompt.bias).flatten(0, 1)
    # to_own: [P * c * G, r * T, t], each reply with its own keys.
    to_own = torch.bmm(query.reshape(len(keys), -1, query.shape[-1]), keys.transpose(1, 2))
    if own_bias is not None:
        to_own = to_own + own_bias
    # One softmax over the tokens of the prompt and those of the reply itself.
    both = (
        torch.cat((to_prompt, to_own.reshape(*query.shape[:2], width)), dim=-1)
        .softmax(dim=-1)
        .to(query.dtype)
    )  # [P * c, G * r * T, S + t]
    of_prompt, of_own = torch.split(both, [seen, width], dim=-1)
    from_own = torch.bmm(of_own.reshape(len(keys), -1, width), values)  # [P * c * G, r * T, d]
    # p_own v_own + p_prompt v_prompt: [P * c, G * r * T, d].
    return torch.baddbmm(from_own.reshape(query.shape), of_prompt, prompt.values.flatten(0, 1))


def fold_queries(query: Tensor, prompts: int, heads: int) -> Tensor:
    """Return queries [P * G, h, T, d] folded: [P * c, G * r * T, d]."""
    _, _, width, size = query.shape
    return (
        query.view(prompts, -1, heads, query.shape[1] // heads, width, size)  # [P, G, c, r, T, d]
        .transpose(1, 2)  # [P, c, G, r, T, d]
        .reshape(prompts * heads, -1, size)
    )


def fold_own(keys: Tensor, prompts: int) -> Tensor:
    """Return own keys or values [P * G, c, t, d] folded: [P * c * G, t, d]."""
    # [P, G, c, t, d] -> [P, c, G, t, d] -> [P * c * G, t, d].
    return keys.view(prompts, -1, *keys.shape[1:]).transpose(1, 2).flatten(0, 2)


def unfold(folded: Tensor, group_size: int, rows: int, prompts: int) -> Tensor:
    """Return folded results [P * c, G * r * T, d] as [P * G, T, h * d]."""
    # table: [P, c, G, r, T, d].
    table = folded.view(prompts, len(folded) // prompts, group_size, rows, -1, folded.shape[-1])
    # [P, G, T, c, r, d]: the h = c * r heads side by side again.
    return table.permute(0, 2, 4, 1, 3, 5).reshape(prompts * group_size, table.shape[4], -1)
