"""Attention over a shared prompt and own tokens against loops over every row, head and token."""

import pytest
import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.language_model import attention
from grpo_pipeline.tasks.dialogue.language_model.attention import (
    Prompt,
    additive_mask,
    attend_prompt,
    attend_replies,
    causal_mask,
    shared_attention,
)

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int, seed: int | None = None) -> torch.Tensor:
    generator = GENERATOR if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def naive(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float) -> torch.Tensor:
    out = torch.empty_like(query)
    for n in range(query.shape[0]):
        for h in range(query.shape[1]):
            for t in range(query.shape[2]):
                scores = scaling * (key[n, h] @ query[n, h, t]) + bias[n, t]
                out[n, h, t] = (scores.exp() / scores.exp().sum()) @ value[n, h]
    return out.transpose(1, 2)


@pytest.mark.parametrize("group_size", [1, 3])
def test_shared_keys_are_those_of_the_rows_own_prompt(group_size: int) -> None:
    query, key, value = normal(2 * group_size, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)
    is_seen = torch.tensor([[True] * 5, [True, True, False, True, False]])
    mask = additive_mask(is_seen, torch.float64)[:, None, None]
    out, _ = shared_attention(torch.nn.Identity(), query, key, value, mask, scaling=1.0)
    rows = [tensor.repeat_interleave(group_size, dim=0) for tensor in (key, value, mask[:, 0].expand(2, 3, 5))]
    torch.testing.assert_close(out, naive(query, *rows, 1.0), rtol=1e-12, atol=1e-12)


def test_a_position_bias_and_the_order_of_time_are_added() -> None:
    query, key, value, bias = normal(2, 1, 3, 4), normal(2, 1, 3, 4), normal(2, 1, 3, 4), normal(1, 1, 3, 3)
    out, _ = shared_attention(torch.nn.Identity(), query, key, value, causal_mask(3, query), scaling=0.5, position_bias=bias)
    lower = bias[0, 0].masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), -1e300).expand(2, 3, 3)
    torch.testing.assert_close(out, naive(query, key, value, lower, 0.5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("learns_bias", [False, True])
@pytest.mark.parametrize("scaling", [None, 1.0, 0.3])
@pytest.mark.parametrize("width", [7, 110])
def test_both_ways_to_attend_agree(width: int, scaling: float | None, learns_bias: bool) -> None:
    """Short and long texts, with and without a gradient of the bias: values and gradients of torch's own kernel."""
    query, key, value = (normal(2, 2, width, 4).requires_grad_() for _ in range(3))
    bias = normal(1, 2, width, width).requires_grad_(learns_bias)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling).transpose(1, 2)
    found, _ = shared_attention(torch.nn.Identity(), query, key, value, None, scaling=scaling, position_bias=bias)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    upstream, learnt = normal(*wanted.shape), [query, key, value, *([bias] if learns_bias else [])]
    gradients = [torch.autograd.grad(out, learnt, upstream) for out in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_padding_never_makes_nan() -> None:
    query = normal(2, 1, 3, 4).float().requires_grad_()
    mask = additive_mask(torch.zeros(2, 3, dtype=torch.bool), torch.float32)[:, None, None]
    bias = torch.full((1, 1, 3, 3), -50.0)
    out, _ = shared_attention(torch.nn.Identity(), query, query, query, mask, position_bias=bias)
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert bool(query.grad.isfinite().all())
    torch.testing.assert_close(out, query.detach().mean(dim=2, keepdim=True).expand(2, 1, 3, 4).transpose(1, 2))


PROMPTS, GROUP, SEEN, WIDTH, SIZE = 2, 3, 5, 4, 6
HEADS = [(2, 2), (4, 2), (3, 1)]  # of queries, of keys
IS_SEEN = torch.tensor([[True] * SEEN, [False, False, True, True, True]])


def looked_at(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    weights = torch.stack([query @ key for key in keys]).softmax(dim=0)
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def group_attention_naive(query: Tensor, own: tuple[Tensor, Tensor], prompt: tuple[Tensor, Tensor], is_seen: Tensor) -> Tensor:
    rows, heads, width, _ = query.shape
    out = torch.empty_like(query)
    for n in range(rows):
        p = n // GROUP
        for h in range(heads):
            c = h // (heads // own[0].shape[1])
            for t in range(width):
                both = [[x[p, c, s] for s in range(SEEN) if is_seen[p, s]] + list(y[n, c, : t + 1]) for x, y in zip(prompt, own)]  # noqa: B905
                out[n, h, t] = looked_at(query[n, h, t], *both)
    return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("heads", "key_heads"), HEADS)
def test_replies_attend_to_their_prompt_and_to_themselves(heads: int, key_heads: int, padded: bool) -> None:
    query = normal(PROMPTS * GROUP, heads, WIDTH, SIZE, seed=0)
    own = tuple(normal(PROMPTS * GROUP, key_heads, WIDTH, SIZE, seed=seed) for seed in (1, 2))
    held = tuple(normal(PROMPTS, key_heads, SEEN, SIZE, seed=seed) for seed in (3, 4))
    is_seen = IS_SEEN if padded else torch.ones_like(IS_SEEN)
    bias = additive_mask(is_seen[:, None, None], torch.float64) if padded else None
    found = attend_replies(query, *own, Prompt(*held, bias))
    torch.testing.assert_close(found, group_attention_naive(query, own, held, is_seen), rtol=1e-12, atol=1e-12)


def test_many_weights_are_computed_again_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache: queries, keys and values; the weights are as many numbers as their product says."""
    found = {}
    for limit in (10**9, 0):
        monkeypatch.setattr(attention, "KEPT_NUMBERS", limit)
        query, *own = (normal(PROMPTS * GROUP, 2, WIDTH, SIZE, seed=seed).requires_grad_() for seed in range(3))
        held = [normal(PROMPTS, 2, SEEN, SIZE, seed=seed).requires_grad_() for seed in (3, 4)]
        sizes: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: (sizes.append(tuple(x.shape)), x)[1], lambda x: x):
            out = attend_replies(query, *own, Prompt(*held, None))
        weights = (PROMPTS * 2, GROUP * WIDTH, SEEN + WIDTH)
        assert (weights in sizes) == (limit > 0)
        out.square().sum().backward()
        found[limit] = [out.detach(), *(x.grad for x in (query, *own, *held))]
    assert all(torch.equal(kept, again) for kept, again in zip(*found.values(), strict=True))


@pytest.mark.parametrize(("heads", "key_heads"), HEADS)
def test_a_prompt_attends_to_what_was_before(heads: int, key_heads: int) -> None:
    query = normal(PROMPTS, heads, SEEN, SIZE, seed=0)
    keys, values = (normal(PROMPTS, key_heads, SEEN, SIZE, seed=seed) for seed in (1, 2))
    for is_seen in (IS_SEEN, torch.ones_like(IS_SEEN)):
        found = attend_prompt(query, keys, values, is_seen=is_seen).unflatten(-1, (heads, SIZE))
        for p in range(PROMPTS):
            for h in range(heads):
                c = h // (heads // key_heads)
                for s in is_seen[p].nonzero().flatten().tolist():
                    before = [i for i in range(s + 1) if is_seen[p, i]]
                    expected = looked_at(query[p, h, s], list(keys[p, c, before]), list(values[p, c, before]))
                    torch.testing.assert_close(found[p, s, h], expected, rtol=1e-12, atol=1e-12)


def test_group_attention_padding_never_makes_nan() -> None:
    """A prompt of its start alone holds nothing but padding beside longer ones; so do padded rows while they are read."""
    query, *own = (normal(PROMPTS * GROUP, 2, WIDTH, SIZE, seed=seed).float().requires_grad_() for seed in range(3))
    held = [normal(PROMPTS, 2, SEEN, SIZE, seed=seed).float() for seed in (3, 4)]
    is_seen = torch.tensor([[True] * SEEN, [False] * SEEN])
    out = attend_replies(query, *own, Prompt(*held, additive_mask(is_seen[:, None, None], torch.float32)))
    inside = attend_prompt(*(normal(PROMPTS, 2, SEEN, SIZE, seed=seed).float() for seed in range(3)), is_seen=is_seen)
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert bool(inside.isfinite().all())
    assert bool(query.grad.isfinite().all())
    torch.testing.assert_close(out[GROUP:, 0], own[1].detach()[GROUP:, :, 0].flatten(1))  # the first own token sees itself
