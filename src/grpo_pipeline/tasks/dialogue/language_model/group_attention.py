"""Attend with the replies of a group, which share their prompt's keys and values and have their own besides.

How this differs from public versions: those join the keys of prompt and reply in a tensor per reply. A prompt's keys and values
are then copied G times, and again whenever the cache grows. Here they exist once per prompt:

    p = softmax([q k_prompt' | q k_own'])        out = p_prompt v_prompt + p_own v_own

A single softmax over both parts gives the same result as a joined tensor.

Axes: P prompts, G replies of each, h heads of queries, c of keys and values, r = h / c of queries per head of keys, S tokens of a
prompt, T tokens with queries, t own tokens with keys, d width of a head. "Folded" means P * c matrices, one per prompt and head
of keys, in which the queries of all replies are adjacent: row (g, r, T). Own keys are folded further, [P * c * G, t, d].
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from grpo_pipeline.tasks.dialogue.language_model.attention import additive_mask
from grpo_pipeline.tasks.dialogue.language_model.merged_attention import attend_merged, can_merge

# Largest number of attention weights of a layer kept for the backward pass (2**24 in float32: 64 MiB); more are recomputed.
KEPT_NUMBERS = 2**24


@dataclass(frozen=True)
class Prompt:
    """Keys and values of P prompts, in a layer.

    Attributes:
        keys: [P, c, S, d].
        values: [P, c, S, d].
        bias: [P, 1, 1, S], added to the scores; None without padding.
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

    By a fused kernel where there is one that tells its log-sum-exp (``merged_attention``), else by a softmax over both.

    Args:
        query: [P * G, h, T, d], already scaled.
        keys: [P * G, c, T, d] of the replies.
        values: of the replies.
        prompt: keys and values of their prompts.

    Returns:
        [P * G, T, h * d].
    """
    prompts, heads = prompt.keys.shape[:2]
    rows, width = query.shape[1] // heads, query.shape[2]
    if rows == 1 and can_merge(query, prompt.keys):
        return _merged(query, keys, values, prompt, None)
    # Causal, the same for each of the r heads of queries that share a head of keys: [r * T, T].
    is_before = (
        torch.ones(width, width, dtype=torch.bool, device=query.device).tril().repeat(rows, 1)
    )
    bias = additive_mask(is_before, query.dtype)
    if can_merge(query, prompt.keys):
        return _merged(query, keys, values, prompt, bias)
    parts = (
        fold_queries(query, prompts, heads),
        prompt,
        fold_own(keys, prompts),
        fold_own(values, prompts),
        bias,
    )
    # Weights of all P * G * h * T queries over S + T keys; too many are recomputed in the backward pass.
    numbers = query.shape[:3].numel() * (prompt.keys.shape[2] + width)
    if torch.is_grad_enabled() and numbers > KEPT_NUMBERS:
        folded = checkpoint(attend_folded, *parts, use_reentrant=False)
    else:
        folded = attend_folded(*parts)
    return unfold(folded, len(query) // prompts, rows, prompts)


def _merged(
    query: Tensor, keys: Tensor, values: Tensor, prompt: Prompt, own_bias: Tensor | None
) -> Tensor:
    held = (prompt.keys, prompt.values, prompt.bias)
    return attend_merged(query, keys, values, held, own_bias).transpose(1, 2).flatten(2)


def attend_folded(
    query: Tensor, prompt: Prompt, keys: Tensor, values: Tensor, own_bias: Tensor | None = None
) -> Tensor:
    """Attend with folded queries [P * c, G * r * T, d]; see the module's docstring.

    Args:
        query: folded.
        prompt: keys and values of the prompts.
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
    # A single softmax over the tokens of the prompt and of the reply itself.
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
    """Fold queries [P * G, h, T, d]: [P * c, G * r * T, d]."""
    _, _, width, size = query.shape
    return (
        query.view(prompts, -1, heads, query.shape[1] // heads, width, size)  # [P, G, c, r, T, d]
        .transpose(1, 2)  # [P, c, G, r, T, d]
        .reshape(prompts * heads, -1, size)
    )


def fold_own(keys: Tensor, prompts: int) -> Tensor:
    """Fold own keys or values [P * G, c, t, d]: [P * c * G, t, d]."""
    # [P, G, c, t, d] -> [P, c, G, t, d] -> [P * c * G, t, d].
    return keys.view(prompts, -1, *keys.shape[1:]).transpose(1, 2).flatten(0, 2)


def unfold(folded: Tensor, group_size: int, rows: int, prompts: int) -> Tensor:
    """Unfold results [P * c, G * r * T, d] to [P * G, T, h * d]."""
    # table: [P, c, G, r, T, d].
    table = folded.view(prompts, len(folded) // prompts, group_size, rows, -1, folded.shape[-1])
    # [P, G, T, c, r, d]: the h = c * r heads side by side again.
    return table.permute(0, 2, 4, 1, 3, 5).reshape(prompts * group_size, table.shape[4], -1)
