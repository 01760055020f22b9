"""Attention over a shared prompt and own tokens against loops over every row, head and token."""

import pytest
import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.language_model import attention
from grpo_pipeline.tasks.dialogue.language_model.attention import Prompt, additive_mask, attend_prompt, attend_replies

PROMPTS, GROUP, SEEN, WIDTH, SIZE = 2, 3, 5, 4, 6
HEADS = [(2, 2), (4, 2), (3, 1)]  # of queries, of keys
IS_SEEN = torch.tensor([[True] * SEEN, [False, False, True, True, True]])


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def looked_at(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    weights = torch.stack([query @ key for key in keys]).softmax(dim=0)
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def naive(query: Tensor, own: tuple[Tensor, Tensor], prompt: tuple[Tensor, Tensor], is_seen: Tensor) -> Tensor:
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
    torch.testing.assert_close(found, naive(query, own, held, is_seen), rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_prompt_is_the_sum_over_its_replies() -> None:
    """One long tensor per reply, the prompt copied, is what autograd is asked about on the other side."""
    query, *own = (normal(PROMPTS * GROUP, 2, WIDTH, SIZE, seed=seed) for seed in range(3))
    held = [normal(PROMPTS, 2, SEEN, SIZE, seed=seed).requires_grad_() for seed in (3, 4)]
    weight = normal(PROMPTS * GROUP, WIDTH, 2 * SIZE, seed=5)
    (attend_replies(query, *own, Prompt(*held, None)) * weight).sum().backward()
    copies = [x.detach().clone().requires_grad_() for x in held]
    long = [torch.cat((x.repeat_interleave(GROUP, dim=0), y), dim=2) for x, y in zip(copies, own, strict=True)]
    order = torch.ones(WIDTH, SEEN + WIDTH, dtype=torch.bool).tril(SEEN)
    out = torch.nn.functional.scaled_dot_product_attention(query, *long, attn_mask=order, scale=1.0)
    (out.transpose(1, 2).flatten(2) * weight).sum().backward()
    for ours, theirs in zip(held, copies, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_many_weights_are_computed_again_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept: queries, keys and values; the weights are as many numbers as their product says."""
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


def test_padding_never_makes_nan() -> None:
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
