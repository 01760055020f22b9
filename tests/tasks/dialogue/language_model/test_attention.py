import pytest
import torch

from grpo_pipeline.tasks.dialogue.language_model.attention import additive_mask, causal_mask, shared_attention

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


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
