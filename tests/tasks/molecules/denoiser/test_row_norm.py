import pytest
import torch
from torch import nn
from torch.nn import functional

from grpo_pipeline.tasks.molecules.denoiser.layers import ModulatedNorm, added, normalised


def rows(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 3 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0)) + 2


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 1, 64), (2, 0, 5)])
def test_rows_are_those_of_layer_norm(shape: tuple[int, ...]) -> None:
    x = rows(*shape)
    assert torch.allclose(normalised(x), functional.layer_norm(x, shape[-1:]), atol=1e-13)


def test_a_constant_row_is_0_and_a_far_mean_costs_no_digits() -> None:
    assert torch.equal(normalised(torch.full((1, 1, 8), 5.0)), torch.zeros(1, 1, 8))
    # deviations from 1000 that float32 holds exactly
    deviations = torch.tensor([[[-1.0, 1.0, -2.0, 2.0]]])
    assert torch.allclose(normalised(deviations + 1000), functional.layer_norm(deviations, (4,)), atol=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    x = rows(2, 3, 5).requires_grad_()
    assert torch.autograd.gradcheck(normalised, (x,))
    strided = rows(2, 5, 3).transpose(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(normalised, (strided,))


def test_half_precision_is_torchs_own() -> None:
    x = rows(2, 3, 8).to(torch.bfloat16)
    assert torch.equal(normalised(x), functional.layer_norm(x, (8,)))


def test_the_whole_scales_and_shifts_every_row() -> None:
    norm, x, whole = ModulatedNorm(4, 3).double(), rows(2, 5, 4), rows(2, 3)
    scale, shift = (norm.film.weight @ whole.T).T.add(norm.film.bias).split(4, dim=-1)
    expected = functional.layer_norm(x, (4,)) * (1 + scale[:, None]) + shift[:, None]
    assert torch.allclose(norm(x, whole), expected, atol=1e-12)


def test_what_is_added_leaves_its_inputs_and_has_their_gradients() -> None:
    linear, to, x = nn.Linear(3, 4).double(), rows(2, 5, 4).requires_grad_(), rows(2, 5, 3).requires_grad_()
    before = to.detach().clone()
    out = added(to, linear, x)
    assert torch.equal(to.detach(), before)
    assert torch.allclose(out, to + linear(x), atol=1e-13)
    for found, wanted in zip(
        torch.autograd.grad(out.square().sum(), (to, x, linear.weight, linear.bias)),
        torch.autograd.grad((to + linear(x)).square().sum(), (to, x, linear.weight, linear.bias)),
        strict=True,
    ):
        assert torch.allclose(found, wanted, atol=1e-11)


def test_a_sum_of_two_precisions_keeps_the_larger_one() -> None:
    linear, to, x = nn.Linear(3, 4), rows(1, 2, 4, dtype=torch.float32), rows(1, 2, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = added(to, linear, x)
    assert out.dtype == torch.float32
    assert torch.allclose(out, to + linear(x), atol=0.1)  # bfloat16 has 8 bits, sums are of size 5
