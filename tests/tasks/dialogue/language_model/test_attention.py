"""Attention beside torch's kernel, without NaN and without what is kept; that it gives transformers' numbers: test_base."""

import pytest
import torch

from grpo_pipeline.tasks.dialogue.language_model import group_attention
from grpo_pipeline.tasks.dialogue.language_model.attention import additive_mask, shared_attention
from grpo_pipeline.tasks.dialogue.language_model.group_attention import Prompt, attend_prompt, attend_replies

GENERATOR = torch.Generator().manual_seed(0)
PROMPTS, GROUP, SEEN, WIDTH, SIZE = 2, 3, 5, 4, 6


def normal(*shape: int, seed: int | None = None) -> torch.Tensor:
    generator = GENERATOR if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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
    """A prompt of its start alone holds nothing but padding beside longer ones; so do padded rows while they are read."""
    query = normal(2, 1, 3, 4).float().requires_grad_()
    mask = additive_mask(torch.zeros(2, 3, dtype=torch.bool), torch.float32)[:, None, None]
    bias = torch.full((1, 1, 3, 3), -50.0)
    out, _ = shared_attention(torch.nn.Identity(), query, query, query, mask, position_bias=bias)
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert bool(query.grad.isfinite().all())
    torch.testing.assert_close(out, query.detach().mean(dim=2, keepdim=True).expand(2, 1, 3, 4).transpose(1, 2))
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


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)],
    ids=["float64", "float32", "bfloat16"],
)
@pytest.mark.parametrize("heads", [2, 4], ids=["a head of keys each", "heads of keys are shared"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_two_calls_merged_give_the_softmax_over_prompt_and_reply(
    dtype: torch.dtype, allowed: float, heads: int, is_padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients of everything that is learnt, beside the single softmax in float64."""
    shapes = [(PROMPTS * GROUP, heads, WIDTH, SIZE), *[(PROMPTS * GROUP, 2, WIDTH, SIZE)] * 2, *[(PROMPTS, 2, SEEN, SIZE)] * 2]
    exact = [normal(*shape, seed=seed).to(dtype).double() for seed, shape in enumerate(shapes)]
    upstream = normal(PROMPTS * GROUP, WIDTH, heads * SIZE, seed=9)
    is_seen = torch.ones(PROMPTS, SEEN, dtype=torch.bool)
    is_seen[0, : SEEN - 2], is_seen[1, :] = False, False  # the second prompt holds nothing

    def run(kind: torch.dtype) -> list[torch.Tensor]:
        query, *own = (x.to(kind).requires_grad_() for x in exact)
        bias = additive_mask(is_seen[:, None, None], kind) if is_padded else None
        out = attend_replies(query, *own[:2], Prompt(*own[2:], bias))
        return [out, *torch.autograd.grad(out, [query, *own], upstream.to(kind))]

    found = run(dtype)
    with monkeypatch.context() as patch:
        patch.setattr(group_attention, "can_merge", lambda *given: False)
        wanted = run(torch.float64)
    assert [x.dtype for x in found] == [dtype] * 6
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=allowed, atol=allowed)


def test_what_is_kept_of_a_reply_is_linear_in_its_length() -> None:
    found = []
    for width in (32, 64):
        query, *own = (normal(PROMPTS * GROUP, 2, width, SIZE, seed=seed).float().requires_grad_() for seed in range(3))
        held = [normal(PROMPTS, 2, SEEN, SIZE, seed=seed).float().requires_grad_() for seed in (3, 4)]
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x):
            attend_replies(query, *own, Prompt(*held, None))
        found.append(sum(sizes))
    assert found[1] < 2 * found[0]


def test_an_empty_prompt_leaves_the_reply_alone() -> None:
    query, *own = (normal(2, 2, WIDTH, SIZE, seed=seed) for seed in range(3))
    held = [normal(1, 2, 0, SIZE) for _ in range(2)]
    wanted = torch.nn.functional.scaled_dot_product_attention(query, *own, is_causal=True, scale=1.0)
    torch.testing.assert_close(attend_replies(query, *own, Prompt(*held, None)), wanted.transpose(1, 2).flatten(2))


def test_many_weights_are_computed_again_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache: queries, keys and values; the weights are as many numbers as their product says."""
    found = {}
    for limit in (10**9, 0):
        monkeypatch.setattr(group_attention, "KEPT_NUMBERS", limit)
        monkeypatch.setattr(group_attention, "can_merge", lambda *given: False)
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
