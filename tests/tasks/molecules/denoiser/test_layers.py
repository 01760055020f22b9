import pytest
import torch
from tiny_graphs import policy, prompts, random_entries
from torch import nn
from torch.nn import functional

from grpo_pipeline.tasks.molecules.denoiser.layers import (
    FEW,
    GraphState,
    ModulatedNorm,
    PairAttention,
    added,
    layout_of,
    normalised,
    weighted,
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 5, FEW - 1, FEW, FEW + 3])
def test_weights_are_a_softmax(n: int) -> None:
    scores, values = 50 * numbers(3, n, n), numbers(3, n, 4, seed=1)
    scores[:, :, 1:2] = -torch.inf
    assert torch.allclose(weighted(scores, values), scores.softmax(-1) @ values, atol=1e-12)
    assert torch.allclose(weighted(scores + 1e4, values), scores.softmax(-1) @ values, atol=1e-9)


@pytest.mark.parametrize("n", [4, FEW])
def test_gradients_are_those_of_a_softmax_and_0_where_nothing_is_read(n: int) -> None:
    scores, values = numbers(2, n, n), numbers(2, n, 3, seed=1).requires_grad_()
    scores[:, :, 0] = -torch.inf
    scores.requires_grad_()
    found, wanted = (
        torch.autograd.grad(out.square().sum(), (scores, values))
        for out in (weighted(scores, values), scores.softmax(-1) @ values)
    )
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(found[0][:, :, 0], torch.zeros(2, n, dtype=torch.float64))


@pytest.mark.parametrize("nodes", [5, FEW + 1])
def test_every_node_reads_by_the_formula(nodes: int) -> None:
    """Node by node and head by head, one graph smaller than the frame."""
    module = PairAttention(6, 4, 3, heads=2).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(numbers(*parameter.shape, seed=parameter.numel()))
    wanted = prompts([nodes, 3], nodes)
    layout = layout_of(wanted, torch.float64)
    state = GraphState(numbers(2, nodes, 6), numbers(2, nodes * (nodes - 1) // 2, 4), numbers(2, 3))
    out = module(state, layout)
    inputs = module.inputs(module.node_norm(state.nodes, state.whole)).view(2, nodes, 3, 2, 3)
    film = module.film(module.pair_norm(state.pairs))
    for row, size in enumerate(wanted.sizes.tolist()):
        for i in range(size):
            read = []
            for h in range(2):
                scores = []
                for j in range(size):
                    pair = int(layout.lookup[i * nodes + j])
                    scale, shift = (module.loop if i == j else film[row, pair]).view(2, 2)[:, h]
                    scores.append(inputs[row, i, 0, h] @ inputs[row, j, 1, h] / 3**0.5 * (1 + scale) + shift)
                weights = torch.stack(scores).softmax(0)
                read.append(sum(w * inputs[row, j, 2, h] for j, w in enumerate(weights)))
            assert torch.allclose(out[row, i], state.nodes[row, i] + module.output(torch.cat(read)), atol=1e-10)


def test_a_single_node_has_gradients() -> None:
    """There are no pairs: every sum over them is empty."""
    model, wanted = policy(), prompts([1, 1], 1)
    out = model.x0_logits(random_entries(wanted), wanted, torch.tensor([2, 3]))
    out.atoms.log_softmax(-1)[..., 0].sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(bool(grad.isfinite().all()) for grad in grads)


def rows(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 3 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0)) + 2


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 1, 64), (2, 0, 5)])
def test_rows_and_gradients_are_those_of_layer_norm(shape: tuple[int, ...]) -> None:
    for x in (rows(*shape).requires_grad_(), rows(*shape).transpose(0, 1).requires_grad_()):
        wanted = functional.layer_norm(x, shape[-1:])
        assert torch.allclose(normalised(x), wanted, atol=1e-13)
        found, expected = (torch.autograd.grad(out.square().mul(out).sum(), x)[0] for out in (normalised(x), wanted))
        assert torch.allclose(found, expected, atol=1e-10)


def test_rows_at_the_ends_of_a_precision() -> None:
    assert torch.equal(normalised(torch.full((1, 1, 8), 5.0)), torch.zeros(1, 1, 8))
    # deviations from 1000 that float32 holds exactly
    deviations = torch.tensor([[[-1.0, 1.0, -2.0, 2.0]]])
    assert torch.allclose(normalised(deviations + 1000), functional.layer_norm(deviations, (4,)), atol=1e-6)
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
