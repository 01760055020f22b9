import pytest
import torch
from tiny_graphs import policy, prompts, random_entries

from grpo_pipeline.tasks.molecules.denoiser.layers import FEW, GraphState, PairAttention, layout_of, weighted


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
