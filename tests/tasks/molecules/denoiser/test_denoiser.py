import math
from itertools import permutations, product

import pytest
import torch
from tiny_graphs import CLASSES, denoiser_params, policy, prompts, random_entries
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.denoiser.structure_features import bond_counts, cycle_counts, structure_features
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import dense_pairs, pair_index
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts


def logits(model: GraphPolicy, entries: Components[Tensor], wanted: GraphPrompts, t: int = 3) -> Components[Tensor]:
    return model.x0_logits(entries, wanted, torch.full_like(wanted.sizes, t))


def test_renaming_the_nodes_renames_the_predictions() -> None:
    model, wanted = policy(), prompts([5, 5], 5)
    entries = random_entries(wanted)
    order = torch.tensor([3, 0, 4, 1, 2])
    first, second = pair_index(5)
    shuffled_bonds = dense_pairs(entries.bonds, 5)[:, order][:, :, order][:, first, second]
    plain = logits(model, entries, wanted)
    renamed = logits(model, Components(entries.atoms[:, order], entries.charges[:, order], shuffled_bonds), wanted)
    assert torch.allclose(renamed.atoms, plain.atoms[:, order], atol=1e-12)
    assert torch.allclose(renamed.charges, plain.charges[:, order], atol=1e-12)
    assert torch.allclose(renamed.bonds, dense_pairs(plain.bonds, 5)[:, order][:, :, order][:, first, second], atol=1e-12)
    assert not torch.allclose(plain.atoms, plain.atoms[:, order], atol=1e-2)
    assert not torch.allclose(plain.bonds, plain.bonds.flip(1), atol=1e-2)


def test_time_size_and_conditions_are_read() -> None:
    model = policy(conditions=1)
    near, far = (make_prompts(torch.tensor([3]), 3, torch.tensor([[value]])) for value in (0.0, 1.0))
    entries = random_entries(near)
    plain = logits(model, entries, near)
    for other in (logits(model, entries, near, t=4), logits(model, entries, far)):
        assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(plain, other, strict=True))


def test_the_whole_is_told_time_size_conditions_and_cycles_in_their_units() -> None:
    """A triangle at step 2 of 5 and a chain at step 5, of 3 and 2 atoms: time as a share, logarithms of size and 1 + counts."""
    model, told = policy(conditions=1), []
    model.denoiser.whole.register_forward_pre_hook(lambda _, inputs: told.append(inputs[0]))
    wanted = make_prompts(torch.tensor([3, 2]), 3, torch.tensor([[-0.5], [1.5]]))
    bonds = torch.tensor([[1, 2, 1], [1, 0, 0]])  # (0, 1), (0, 2), (1, 2)
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    model.x0_logits(Components(nothing, nothing, bonds), wanted, torch.tensor([2, 5]))
    expected = [[2 / 5, math.log(3), -0.5, math.log(2), 0.0, 0.0], [1.0, math.log(2), 1.5, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(told[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-7)


def test_weights_follow_from_their_seed_alone() -> None:
    first, again, other = (dict(policy(seed=seed).named_parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["denoiser.atom_embedding.weight"], other["denoiser.atom_embedding.weight"])


def test_every_parameter_learns_and_half_precision_leaves_as_float32() -> None:
    model, wanted = policy(conditions=2), make_prompts(torch.tensor([4, 3]), 4, torch.ones(2, 2))
    out = logits(model, random_entries(wanted), wanted)
    sum((part.log_softmax(-1)[..., 0][mask]).sum() for part, mask in zip(out, wanted.masks, strict=True)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())] == []
    model, wanted = policy().float(), prompts([4], 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = logits(model, random_entries(wanted), wanted)
    exact = logits(model, random_entries(wanted), wanted)
    assert {part.dtype for part in out} == {torch.float32}
    # bfloat16 has 8 bits: 2 layers of sums of about 10 terms of size 1
    assert all(torch.allclose(a, b, atol=0.2) for a, b in zip(out, exact, strict=True))


def test_temperature_divides_the_logits() -> None:
    model, wanted = policy(), prompts([3], 3)
    entries, t = random_entries(wanted), torch.tensor([2])
    warm = model.x0_logits(entries, wanted, t, temperature=2.0)
    assert all(torch.allclose(z / 2, w) for z, w in zip(model.x0_logits(entries, wanted, t), warm, strict=True))
    with pytest.raises(ValueError, match="temperature must be above 0"):
        model.step_log_probs(entries, wanted, t, temperature=0.0)
    with pytest.raises(ValueError, match="width must be a multiple of heads, got 6 and 4"):
        denoiser_params(width=6, heads=4)


def naive_cycles(bonded: torch.Tensor, length: int) -> list[int]:
    """Count the cycles of ``length`` different nodes through each node, walking all ordered choices of nodes."""
    n = len(bonded)
    counts = [0] * n
    for path in permutations(range(n), length):
        if all(bool(bonded[a, b]) for a, b in zip(path, path[1:] + path[:1], strict=True)):
            counts[path[0]] += 1
    return [count // 2 for count in counts]  # each cycle is walked in both directions


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_brute_force(seed: int) -> None:
    wanted = prompts([6, 5, 3], 6)
    bonds = random_entries(wanted, seed=seed).bonds
    bonds[0] *= torch.arange(15) % 2  # a sparse graph beside dense ones
    counts, dense = cycle_counts(bonds, 6, torch.float64), dense_pairs(bonds, 6)
    for row, (column, length) in product(range(3), enumerate((3, 4, 5))):
        assert counts[row, :, column].tolist() == naive_cycles(dense[row] > 0, length)
    each = torch.stack([(dense == k).sum(-1).double() for k in range(1, CLASSES.bonds)], dim=-1)
    assert torch.equal(bond_counts(bonds, 6, CLASSES.bonds, torch.float64), each)  # at both ends
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which would round counts above 256
        counts = cycle_counts(torch.ones(1, 28, dtype=torch.int64), 8, torch.float32)
    # 8 nodes, all bonded; through each: (7 * 6) / 2, (7 * 6 * 5) / 2, (7 * 6 * 5 * 4) / 2
    assert counts[0, 0].tolist() == [21.0, 105.0, 420.0]
    square = torch.tensor([[1, 0, 2, 1, 0, 1]])  # (0, 1), (0, 3), (1, 2), (2, 3): features are logarithms of counts
    nodes, whole = (part.expm1() for part in structure_features(square, 4, CLASSES.bonds, torch.float64))
    assert torch.allclose(nodes[0, 0], torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    assert torch.allclose(whole, torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64))
