import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_pipeline.core.sampling import linear_logprobs
from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs

F64 = torch.float64


def head(rows, width, choices, dtype=F64, seed=0):
    """Return hidden [rows, width], weight [choices, width], bias [choices] and actions [rows]; the tensors want gradients."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"hidden": (rows, width), "weight": (choices, width), "bias": (choices,)}
    tensors = {name: torch.randn(size, dtype=dtype, generator=generator).requires_grad_() for name, size in sizes.items()}
    return SimpleNamespace(**tensors, actions=torch.randint(choices, (rows,), generator=generator))


def plain(hidden, weight, actions, bias=None, temperature=1.0):
    """All logits at once."""
    log_probs = (functional.linear(hidden, weight, bias) / temperature).log_softmax(-1)
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


def gradients(outputs, weights, inputs):
    loss = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True) if output is not None)
    return torch.autograd.grad(loss, inputs)


@settings(max_examples=80)
@given(
    shape=st.sampled_from([(0,), (1,), (7,), (2, 3)]),
    choices=st.integers(1, 9),
    chunk_rows=st.none() | st.integers(1, 8),
    block=st.integers(1, 40),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    trained=st.sets(st.sampled_from(["hidden", "weight", "bias"]), min_size=1),
    with_bias=st.booleans(),
    with_entropy=st.booleans(),
)
def test_any_blocks_give_what_all_logits_give(shape, choices, chunk_rows, block, temperature, trained, with_bias, with_entropy):
    rows = math.prod(shape)
    h = head(rows, 3, choices, seed=rows + 10 * choices)
    trained = trained - {"bias"} if not with_bias else trained
    leaves = {name: getattr(h, name).detach().requires_grad_(name in trained) for name in ("hidden", "weight", "bias")}
    hidden, actions = leaves["hidden"].view(*shape, 3), h.actions.view(shape)
    bias, inputs = leaves["bias"] if with_bias else None, [leaves[name] for name in sorted(trained)]
    options = {"bias": bias, "temperature": temperature, "chunk_rows": chunk_rows, "with_entropy": with_entropy}
    asked = torch.randn(2, *shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    want = plain(hidden, leaves["weight"], actions, bias, temperature)
    want = want if with_entropy else (want[0], None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_logprobs, "BLOCK_NUMBERS", block)
        got = chunked_logprobs(hidden, leaves["weight"], actions, **options)
        assert (got[1] is None) is not with_entropy
        torch.testing.assert_close(got[: 1 + with_entropy], want[: 1 + with_entropy], atol=1e-12, rtol=0)
        assert all(output.requires_grad is bool(trained) for output in got if output is not None)
        got[0].masked_fill_(keep := asked[0] < -1, 0.0)  # in place
        if trained:
            want_gradients = gradients((want[0] * ~keep, want[1]), asked, inputs)
            torch.testing.assert_close(gradients(got, asked, inputs), want_gradients, atol=1e-12, rtol=0)


@pytest.mark.parametrize("offset", [0.0, 300.0, -300.0])
def test_large_logits_neither_overflow_nor_vanish(offset, monkeypatch):
    monkeypatch.setattr(linear_logprobs, "BLOCK_NUMBERS", 4)
    h = head(4, 3, 9, dtype=torch.float32)
    bias = (torch.arange(9) * 20.0 + offset).requires_grad_()  # the blocks' largest logits rise by 20 and more
    got = chunked_logprobs(h.hidden, h.weight, h.actions, bias=bias, chunk_rows=2)
    want = plain(h.hidden.double(), h.weight.double(), h.actions, bias.double())
    # float32 logits of up to 460 are known to 3e-5
    torch.testing.assert_close([x.double() for x in got], list(want), atol=1e-4, rtol=0)
    got, want = (gradients(outputs, torch.ones(2, 4), (h.hidden, h.weight, bias)) for outputs in (got, want))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def errors(outputs, exact):
    return [float((one.double() - other).detach().abs().mean()) for one, other in zip(outputs, exact, strict=True)]


def test_under_autocast_only_the_products_are_in_bfloat16(monkeypatch):
    monkeypatch.setattr(linear_logprobs, "BLOCK_NUMBERS", 1000)
    h = head(60, 16, 100, dtype=torch.float32)
    inputs, asked = (h.hidden, h.weight, h.bias), torch.ones(2, 60)
    exact = plain(*(x.double() for x in (h.hidden, h.weight)), h.actions, h.bias.double(), 0.7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = chunked_logprobs(h.hidden, h.weight, h.actions, bias=h.bias, temperature=0.7)
        theirs = plain(h.hidden, h.weight, h.actions, h.bias, 0.7)
    found, wanted, known = ((*outputs, *gradients(outputs, asked, inputs)) for outputs in (ours, theirs, exact))
    assert [tensor.dtype for tensor in found] == [torch.float32] * 5
    # No worse than autocast's own way by more than a quarter, and really in bfloat16.
    for one, other in zip(errors(found, known), errors(wanted, known), strict=True):
        assert 1e-5 < one < 1.25 * other


def test_bfloat16_parameters_get_bfloat16_gradients_of_float32_sums():
    h = head(6, 4, 50, dtype=torch.bfloat16)
    outputs = chunked_logprobs(h.hidden, h.weight, h.actions, bias=h.bias)
    assert [output.dtype for output in outputs] == [torch.float32] * 2
    exact = plain(h.hidden.double(), h.weight.double(), h.actions, h.bias.double())
    got, want = (gradients(o, torch.ones(2, 6), (h.hidden, h.weight, h.bias)) for o in (outputs, exact))
    assert [gradient.dtype for gradient in got] == [torch.bfloat16] * 3
    # Logits of bfloat16 are known to 2**-8 of their size, here up to about 8.
    torch.testing.assert_close(outputs, tuple(o.float() for o in exact), atol=0.03, rtol=0)
    torch.testing.assert_close(got, want, atol=0.1, rtol=0.03)


class LargestTensor(TorchDispatchMode):
    """Record the most numbers that any operation's result holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (result if isinstance(result, (tuple, list)) else [result]) if torch.is_tensor(x)]
        self.numbers = max([self.numbers, *(tensor.numel() for tensor in tensors)])
        return result


@pytest.mark.parametrize(("function", "holds_all"), [(chunked_logprobs, False), (plain, True)])
def test_all_logits_are_never_held(function, holds_all, monkeypatch):
    monkeypatch.setattr(linear_logprobs, "BLOCK_NUMBERS", 256)
    h = head(64, 4, 128)
    with LargestTensor() as largest:
        torch.autograd.grad(sum(function(h.hidden, h.weight, h.actions)).sum(), (h.hidden, h.weight))
    assert (largest.numbers >= 64 * 128) == holds_all
    assert holds_all or largest.numbers <= 128 * 4  # the weight itself, or two blocks


def chunked(**change):
    h = head(6, 4, 5)
    return chunked_logprobs(**{"hidden": h.hidden, "weight": h.weight, "actions": h.actions} | change)


test_refuses = refuses(
    ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ({"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
    ({"actions": torch.zeros(5, dtype=torch.int64)}, r"got hidden \(6, 4\), weight \(5, 4\), actions \(5,\)"),
    ({"weight": torch.zeros(5, 3, dtype=F64)}, r"got hidden \(6, 4\), weight \(5, 3\)"),
    ({"bias": torch.zeros(4, dtype=F64)}, r"bias must have the shape \(5,\), got \(4,\)"),
    ({"bias": torch.zeros(5)}, "must share one dtype, got .'torch.float32', 'torch.float64'"),
    ({"actions": torch.tensor([0, 1, 2, 3, 4, 5])}, "actions must be between 0 and 4, got 0 to 5"),
    ({"actions": torch.tensor([0, 1, 2, 3, 4, -100])}, "actions must be between 0 and 4, got -100 to 4"),
    by=chunked,
)
