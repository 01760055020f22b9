"""Attend to a shared prompt and to the reply itself in two calls of a fused kernel, merged by their log-sum-exp.

    out = e^(l_prompt - l) out_prompt + e^(l_own - l) out_own,    l = log(e^l_prompt + e^l_own)

A fused kernel keeps no weights, only its result and the logarithm l of the sum of its exponentials: memory is linear in the
length of prompt and reply. Its backward pass computes the weight of a key anew as e^(q k - l), and needs beside it only the
product of the result and its gradient. Given the merged l and the merged result it returns the gradients of the joint softmax,
part by part, so that nothing has to pass through l itself.

Sources: Dao et al., "FlashAttention", arXiv 2205.14135, appendix B; for the merging Liu et al., "Ring attention",
arXiv 2310.01889.
"""

from typing import Any

import torch
from torch import Tensor

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
TYPES = (torch.float32, torch.float64, torch.bfloat16)


def can_merge(query: Tensor, prompt_keys: Tensor) -> bool:
    """Check whether the kernel knows these tensors: on a CPU, of a usual type, with a prompt that is not empty."""
    return query.device.type == "cpu" and _type_of(query) in TYPES and prompt_keys.shape[2] > 0


def attend_merged(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prompt: tuple[Tensor, Tensor, Tensor | None],
    own_bias: Tensor | None,
) -> Tensor:
    """Attend to the prompt and, causally, to the reply itself.

    Args:
        query: [P * G, h, T, d], already scaled.
        keys: [P * G, c, T, d] of the replies.
        values: of the replies.
        prompt: keys and values [P, c, S, d] of the prompts, and what is added to their scores, [P, 1, 1, S] or None.
        own_bias: [r * T, T], added to the scores of own tokens; None where r = 1, and the kernel knows what is causal.

    Returns:
        [P * G, h, T, d].
    """
    kind, heads = _type_of(query), keys.shape[1]
    *told, bias = prompt
    # The r heads of queries that share a head of keys stand below each other: [P * G, c, r * T, d].
    folded = query.reshape(len(query), heads, -1, query.shape[-1])
    read = [x.to(kind) for x in (folded, keys, values, *told)]
    biases = (_masked(x, kind) for x in (bias, own_bias))
    out: Tensor = _Merged.apply(*read, *biases)  # type: ignore[no-untyped-call]
    return out.reshape(query.shape)


def _type_of(query: Tensor) -> torch.dtype:
    """Tell the type in which products are computed here."""
    is_mixed = torch.is_autocast_enabled(query.device.type)
    return torch.get_autocast_dtype(query.device.type) if is_mixed else query.dtype


def _masked(bias: Tensor | None, kind: torch.dtype) -> Tensor | None:
    """Keep what is masked finite in another type, so that a row of padding alone has no NaN."""
    return None if bias is None else bias.to(kind).clamp_min(torch.finfo(kind).min)


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        prompt_keys: Tensor,
        prompt_values: Tensor,
        bias: Tensor | None,
        own_bias: Tensor | None,
    ) -> Tensor:
        prompts = len(prompt_keys)
        of_prompt, log_prompt = FORWARD(
            _to_prompts(query, prompts), prompt_keys, prompt_values, **_told(bias)
        )  # [P, c, G * r * T, d] and without d
        of_own, log_own = FORWARD(
            query, keys, values, **_told(own_bias, is_own=True)
        )  # [P * G, c, r * T, d]
        of_prompt, log_prompt = (_to_rows(x, len(query)) for x in (of_prompt, log_prompt))
        total = torch.logaddexp(log_prompt, log_own)  # [P * G, c, r * T]
        shares = ((part - total).exp()[..., None] for part in (log_prompt, log_own))
        merged: Tensor = of_prompt * next(shares) + of_own * next(shares)
        merged = merged.to(query.dtype)
        ctx.save_for_backward(
            query, keys, values, prompt_keys, prompt_values, bias, own_bias, merged, total
        )
        return merged

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, prompt_keys, prompt_values, bias, own_bias, merged, total = (
            ctx.saved_tensors
        )
        prompts = len(prompt_keys)
        rows = (gradient.contiguous(), query, merged, total)
        g, q, out, log = (_to_prompts(x, prompts) for x in rows)
        of_prompt, *to_prompt = BACKWARD(g, q, prompt_keys, prompt_values, out, log, **_told(bias))
        of_own, *to_own = BACKWARD(
            rows[0], query, keys, values, merged, total, **_told(own_bias, is_own=True)
        )
        return (of_own + _to_rows(of_prompt, len(query)), *to_own, *to_prompt, None, None)


def _told(bias: Tensor | None, *, is_own: bool = False) -> dict[str, Any]:
    return {"dropout_p": 0.0, "is_causal": is_own and bias is None, "attn_mask": bias, "scale": 1.0}


def _to_prompts(rows: Tensor, prompts: int) -> Tensor:
    """Put the queries of a prompt's replies beside each other: [P * G, c, r * T, ...] -> [P, c, G * r * T, ...]."""
    table = rows.reshape(prompts, -1, *rows.shape[1:])  # [P, G, c, r * T, ...]
    return table.transpose(1, 2).flatten(2, 3).contiguous()


def _to_rows(folded: Tensor, rows: int) -> Tensor:
    """Undo ``_to_prompts``."""
    prompts, heads = folded.shape[:2]
    table = folded.reshape(prompts, heads, rows // prompts, -1, *folded.shape[3:])
    return table.transpose(1, 2).flatten(0, 1).contiguous()  # [P * G, c, r * T, ...]
