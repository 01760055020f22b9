from itertools import product

import pytest
import torch
from tiny_graphs import policy, prompts, random_entries
from torch import nn
from torch.nn import functional

from grpo_pipeline.tasks.molecules.denoiser import graph_layer, graph_layout, modulated_norm, pair_attention


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 5, pair_attention.FEW - 1, pair_attention.FEW, pair_attention.FEW + 3])
def test_weights_are_a_softmax_with_its_gradients(n: int) -> None:
    for scale, moved, tolerance in ((1, 0, 1e-12), (50, 1e4, 1e-9)):
        scores, values = scale * normal(3, n, n), normal(3, n, 4, seed=1).requires_grad_()
        scores[:, :, 1:2] = -torch.inf
        scores.requires_grad_()
        found, wanted = (
            (out, *torch.autograd.grad(out.square().sum(), (scores, values)))
            for out in (pair_attention.weighted(scores + moved, values), scores.softmax(-1) @ values)
        )
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)
        assert not found[1][:, :, 1:2].any()


@pytest.mark.parametrize("nodes", [5, pair_attention.FEW + 1])
def test_every_node_reads_by_the_formula(nodes: int) -> None:
    """Node by node and head by head, one graph smaller than the frame."""
    module = pair_attention.PairAttention(6, 4, 3, heads=2).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(*parameter.shape, seed=parameter.numel()))
    wanted = prompts([nodes, 3], nodes)
    layout = graph_layout.layout_of(wanted, torch.float64)
    state = graph_layout.GraphState(normal(2, nodes, 6), normal(2, nodes * (nodes - 1) // 2, 4), normal(2, 3))
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


def test_pairs_and_the_whole_read_by_the_formula() -> None:
    """Pair by pair: the product of what is read of both ends; the whole reads means over the nodes and pairs that are there."""
    layer, wanted = graph_layer.GraphLayer(6, 4, 3, heads=2).double(), prompts([4, 2, 1], 4)
    layout = graph_layout.layout_of(wanted, torch.float64)
    state = graph_layout.GraphState(normal(3, 4, 6), normal(3, 6, 4), normal(3, 3))
    nodes, update = layer.node_forward(layer.attention(state, layout), state.whole), layer.pair_update
    read = update.input(update.norm(nodes, state.whole))
    found = update(state.pairs, nodes, state.whole, layout)
    for row, (pair, (i, j)) in product(range(3), enumerate(layout.ends.T.tolist())):
        expected = state.pairs[row, pair] + update.output(read[row, i] * read[row, j])
        assert torch.allclose(found[row, pair], expected, atol=1e-12)
    out, pairs = layer(state, layout), layer.pair_forward(found, state.whole)
    for row, size in enumerate(wanted.sizes.tolist()):
        there = [pair for pair, (_, j) in enumerate(layout.ends.T.tolist()) if j < size]
        of_pairs = pairs[row, there].mean(0) if there else torch.zeros(4, dtype=torch.float64)
        told = torch.cat([nodes[row, :size].mean(0), of_pairs, state.whole[row]])
        assert torch.allclose(out.whole[row], state.whole[row] + layer.whole_forward(told), atol=1e-12)


def test_a_single_node_has_gradients() -> None:
    """There are no pairs: every sum over them is empty."""
    model, wanted = policy(), prompts([1, 1], 1)
    out = model.x0_logits(random_entries(wanted), wanted, torch.tensor([2, 3])).atoms.log_softmax(-1)[..., 0].sum()
    gradients = torch.autograd.grad(out, [*model.parameters()], allow_unused=True)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)


def rows(*shape: int) -> torch.Tensor:
    return 3 * normal(*shape) + 2


def test_rows_and_gradients_are_those_of_layer_norm() -> None:
    for shape in ((2, 3, 7), (1, 1, 64), (2, 0, 5)):
        for x in (rows(*shape).requires_grad_(), rows(*shape).transpose(0, 1).requires_grad_()):
            outs = (modulated_norm.normalised(x), functional.layer_norm(x, shape[-1:]))
            found, wanted = ((out, *torch.autograd.grad(out.square().mul(out).sum(), x)) for out in outs)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    # At the ends of a precision.
    assert torch.equal(modulated_norm.normalised(torch.full((1, 1, 8), 5.0)), torch.zeros(1, 1, 8))
    deviations = torch.tensor([[[-1.0, 1.0, -2.0, 2.0]]])  # from 1000, float32 holds them exactly
    assert torch.allclose(modulated_norm.normalised(deviations + 1000), functional.layer_norm(deviations, (4,)), atol=1e-6)
    x = rows(2, 3, 8).to(torch.bfloat16)
    assert torch.equal(modulated_norm.normalised(x), functional.layer_norm(x, (8,)))
    # The whole scales and shifts every row.
    norm, x, whole = modulated_norm.ModulatedNorm(4, 3).double(), rows(2, 5, 4), rows(2, 3)
    scale, shift = (norm.film.weight @ whole.T).T.add(norm.film.bias).split(4, dim=-1)
    expected = functional.layer_norm(x, (4,)) * (1 + scale[:, None]) + shift[:, None]
    assert torch.allclose(norm(x, whole), expected, atol=1e-12)


def test_what_is_added_leaves_its_inputs_and_has_their_gradients() -> None:
    linear, to, x = nn.Linear(3, 4).double(), rows(2, 5, 4).requires_grad_(), rows(2, 5, 3).requires_grad_()
    before, inputs = to.detach().clone(), (to, x, *linear.parameters())
    out = modulated_norm.added(to, linear, x)
    assert torch.equal(to.detach(), before)
    found, wanted = ((y, *torch.autograd.grad(y.square().sum(), inputs)) for y in (out, to + linear(x)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-11)
    linear, to, x = linear.float(), to.float(), x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # a sum of two precisions keeps the larger one
        out = modulated_norm.added(to, linear, x)
    assert out.dtype == torch.float32
    assert torch.allclose(out, to + linear(x), atol=0.1)  # bfloat16 has 8 bits, sums are of size 5
