"""The exact distribution over all trajectories of graphs of two nodes, found by walking through every one of them.

Two types of atoms, two of charges or one, and bond or no bond: 8 graphs without charges, 16 with them. T steps give
graphs ** (T + 1) trajectories. The oracle multiplies matrices of single steps and knows nothing of logarithms.
"""

from itertools import product

import pytest
import torch
from scipy.stats import chisquare
from tiny_graphs import generator, policy, prompts, trajectory_params
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.step_scores import score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.diffusion.transition import Transition
from grpo_pipeline.tasks.molecules.graphs.components import Components

CASES = [(Components(2, 1, 2), 2), (Components(2, 1, 2), 3), (Components(2, 2, 2), 2)]
Graph = tuple[int, ...]  # atom 0, atom 1, charge 0, charge 1, bond


def all_graphs(classes: Components[int]) -> list[Graph]:
    return list(product(*(range(k) for k in (classes.atoms,) * 2 + (classes.charges,) * 2 + (classes.bonds,))))


def entries(graphs: list[Graph]) -> Components[Tensor]:
    table = torch.tensor(graphs)
    return Components(table[:, :2], table[:, 2:4], table[:, 4:])


def predicted_slots(model: GraphPolicy, graphs: list[Graph], t: int) -> list[Tensor]:
    """Return p(x0 | z_t) of each entry of a graph, [N, K]."""
    with torch.no_grad():
        logits = model.x0_logits(entries(graphs), prompts([2] * len(graphs), 2), torch.full((len(graphs),), t))
    return [part.softmax(-1)[:, i] for part in logits for i in range(part.shape[1])]


def noise_slots(model: GraphPolicy) -> list[Transition]:
    return [model.noise.atoms] * 2 + [model.noise.charges] * 2 + [model.noise.bonds]


def naive_kernel(model: GraphPolicy, classes: Components[int], t: int) -> Tensor:
    """Return p(z_{t-1} = b | z_t = a) for every pair of graphs [a, b], entry by entry from products of matrices."""
    graphs = all_graphs(classes)
    kernel = torch.ones(len(graphs), len(graphs), dtype=torch.float64)
    for slot, (p, noise) in enumerate(zip(predicted_slots(model, graphs, t), noise_slots(model), strict=True)):
        earlier = torch.eye(noise.classes, dtype=torch.float64)
        for s in range(1, t):
            earlier = earlier @ noise.step_matrix(s)
        step, total = noise.step_matrix(t), earlier @ noise.step_matrix(t)
        for a, before in enumerate(graphs):
            z = before[slot]
            p_after = sum(p[a, x] * earlier[x] * step[:, z] / total[x, z] for x in range(noise.classes))
            kernel[a] *= p_after[[after[slot] for after in graphs]]
    return kernel


def naive_start(model: GraphPolicy, classes: Components[int]) -> Tensor:
    limits = [noise.limit for noise in noise_slots(model)]
    return torch.stack([torch.stack([m[z] for m, z in zip(limits, graph, strict=True)]).prod() for graph in all_graphs(classes)])


def all_trajectories(classes: Components[int], steps: int) -> tuple[Tensor, Trajectories]:
    """Return every trajectory as numbers of graphs, int64 [N, T + 1] from T to 0, and as one prompt's group of N."""
    graphs = all_graphs(classes)
    paths = torch.tensor(list(product(range(len(graphs)), repeat=steps + 1)))
    by_time = entries(graphs).each(lambda part: part[paths.flip(1)].to(torch.uint8).unsqueeze(0))
    times = torch.arange(steps, 0, -1).expand(1, len(paths), steps)
    empty = torch.zeros(times.shape, dtype=torch.float64)
    sizes = torch.tensor([2])
    return paths, Trajectories(times, empty, times > 0, *by_time, sizes, torch.zeros(1, 0))


def numbers(rollouts: Trajectories, classes: Components[int]) -> Tensor:
    """Return the number of the graph at every time from T to 0, int64 [P * G, T + 1]."""
    slots = torch.cat([rollouts.atoms, rollouts.charges, rollouts.bonds], -1).flatten(0, 1).long().flip(1)
    index = torch.zeros(slots.shape[:2], dtype=torch.int64)
    for slot, k in enumerate((classes.atoms,) * 2 + (classes.charges,) * 2 + (classes.bonds,)):
        index = index * k + slots[..., slot]
    return index


@pytest.mark.parametrize(("classes", "steps"), CASES)
def test_the_probabilities_of_all_trajectories_sum_to_one(classes: Components[int], steps: int) -> None:
    model = policy(steps, classes)
    paths, rollouts = all_trajectories(classes, steps)
    with torch.no_grad():
        scores = score_steps(model, rollouts, params=trajectory_params(), temperature=1.0)
    start = naive_start(model, classes)
    probabilities = start[paths[:, 0]] * scores.logprobs[0].sum(-1).exp()
    assert abs(float(probabilities.sum()) - 1) < 1e-12
    oracle = start[paths[:, 0]].log()
    for step, t in enumerate(range(steps, 0, -1)):
        kernel = naive_kernel(model, classes, t).log()
        assert torch.allclose(scores.logprobs[0, :, step], kernel[paths[:, step], paths[:, step + 1]], rtol=0, atol=1e-10)
        oracle = oracle + kernel[paths[:, step], paths[:, step + 1]]
    assert torch.allclose(probabilities.log(), oracle, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("classes", "steps"), CASES)
def test_a_sampled_trajectory_has_its_enumerated_probability_and_frequency(classes: Components[int], steps: int) -> None:
    model, drawn = policy(steps, classes), 20_000
    known = {"params": trajectory_params(), "temperature": 1.0, "generator": generator(4)}
    rollouts = sample_trajectories(model, prompts([2], 2), drawn, **known)
    paths = numbers(rollouts, classes)
    kernels = [naive_kernel(model, classes, t) for t in range(steps, 0, -1)]
    for step, kernel in enumerate(kernels):
        wanted = kernel.log()[paths[:, step], paths[:, step + 1]]
        assert torch.allclose(rollouts.logprobs[0, :, step], wanted, rtol=0, atol=1e-10)
    check_frequencies(paths[:, 0], naive_start(model, classes))
    joint = naive_start(model, classes)
    for kernel in kernels[:2]:
        joint = joint.unsqueeze(-1) * kernel.view(*[1] * (joint.ndim - 1), *kernel.shape)
    count = len(kernels[0])
    check_frequencies((paths[:, 0] * count + paths[:, 1]) * count + paths[:, 2], joint.flatten())
    final = naive_start(model, classes)
    for kernel in kernels:
        final = final @ kernel
    check_frequencies(paths[:, -1], final)


def check_frequencies(found: Tensor, wanted: Tensor) -> None:
    """Chi-square test of what was drawn; what is expected fewer than 5 times is counted together, with the first cell."""
    expected, counts = wanted * len(found), torch.bincount(found, minlength=len(wanted)).double()
    cells = torch.where(expected < 5, int(expected.argmax()), torch.arange(len(wanted)))
    expected, counts = (torch.zeros_like(expected).index_add(0, cells, part)[expected >= 5] for part in (expected, counts))
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("estimator", ["step", "eager"])
def test_entropy_and_kl_are_sums_over_all_graphs(estimator: str) -> None:
    """Against sums over every z_{t-1} (or x0): H = -sum p log p, KL = sum p (log p - log q)."""
    classes, steps = Components(2, 2, 2), 3
    model, reference = policy(steps, classes, seed=1), policy(steps, classes, seed=2)
    _, rollouts = all_trajectories(Components(2, 2, 2), 1)
    graphs = all_graphs(classes)
    params = trajectory_params(estimator=estimator)
    for t in (1, 3):
        wide = [torch.zeros(1, len(graphs), steps + 1, part.shape[-1], dtype=torch.uint8) for part in entries(graphs)]
        for part, source in zip(wide, entries(graphs), strict=True):
            part[0, :, t] = source.to(torch.uint8)
        times = torch.full((1, len(graphs), 1), t)
        group = Trajectories(times, times.double(), times > 0, *wide, rollouts.sizes, rollouts.conditions)
        with torch.no_grad():
            scores = score_steps(model, group, params=params, temperature=1.0, reference=reference)
        p, q = (kernel_of(m, classes, t, estimator) for m in (model, reference))
        assert torch.allclose(scores.entropy[0, :, 0], -(p * p.log()).sum(1), atol=1e-12)
        assert torch.allclose(scores.kl[0, :, 0], (p * (p.log() - q.log())).sum(1), atol=1e-12)
        assert bool((scores.kl > 1e-3).all())


def kernel_of(model: GraphPolicy, classes: Components[int], t: int, estimator: str) -> Tensor:
    """Return p(z_{t-1} | z_t), or p(x0 | z_t), for all pairs of graphs."""
    if estimator == "step":
        return naive_kernel(model, classes, t)
    graphs = all_graphs(classes)
    slots = predicted_slots(model, graphs, t)
    return torch.stack(
        [torch.stack([slot[:, x] for slot, x in zip(slots, graph, strict=True)]).prod(0) for graph in graphs], dim=1
    )
