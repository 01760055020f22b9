import pytest
import torch
from scipy.stats import chisquare
from tiny_graphs import CLASSES, generator, graph_noise, noise_params, prompts, random_entries, random_graphs, skewed_limit

from grpo_pipeline.tasks.molecules.diffusion.noise import cosine_schedule, count_classes, draw_entries, limits_of
from grpo_pipeline.tasks.molecules.graphs.graphs import Components, entries_of, graphs_of


def test_a_corrupted_graph_is_a_graph() -> None:
    """Symmetric, nothing outside it (``graphs_of`` checks), and the components do not write into each other or into x0."""
    graphs, noise = random_graphs([5, 2, 1], 5), graph_noise()
    clean = entries_of(graphs)
    before = clean.each(torch.clone)
    wanted = prompts([5, 2, 1], 5)
    for t in (0, 3, 5):
        noisy = noise.corrupt(clean, torch.full((3,), t), wanted.masks, generator=generator(t))
        graphs_of(noisy, graphs.sizes)
        if t == 0:
            assert all(noisy.each(torch.equal, clean))
    assert all(clean.each(torch.equal, before))


def test_each_component_has_its_own_limit_and_schedule() -> None:
    noise = graph_noise()
    exponents = Components(1.0, 1.0, 1.5)
    for transition, k, exponent in zip(noise.transitions, CLASSES, exponents, strict=True):
        assert torch.equal(transition.limit, skewed_limit(k))
        assert torch.equal(transition.log_total_keep.exp(), cosine_schedule(5, exponent).total_keep.log().exp())
    start = noise.draw_start(prompts([4] * 3000, 4), generator=generator())
    for entries, k in zip(start, CLASSES, strict=True):
        counts = torch.bincount(entries.flatten(), minlength=k)
        assert chisquare(counts.numpy(), (skewed_limit(k) * entries.numel()).numpy()).pvalue > 1e-3


def test_padding_stays_empty() -> None:
    wanted, noise = prompts([2, 4], 4), graph_noise()
    drawn = [
        noise.draw_start(wanted, generator=generator()),
        draw_entries(wanted.masks.each(lambda m, k: torch.zeros(*m.shape, k), CLASSES), wanted.masks, generator=generator()),
    ]
    for entries in drawn:
        assert not any(bool(part[~mask].any()) for part, mask in zip(entries, wanted.masks, strict=True))


def test_classes_are_counted_without_padding_and_each_pair_once() -> None:
    graphs = random_graphs([3, 2], 5)
    counts = count_classes(graphs, CLASSES)
    assert [float(count.sum()) for count in counts] == [5.0, 5.0, 4.0]  # 3 + 2 nodes; 3 + 1 pairs
    bonds = [0.0] * CLASSES.bonds
    for row, size in ((0, 3), (1, 2)):
        for i in range(size):
            for j in range(i):
                bonds[int(graphs.bonds[row, i, j])] += 1
    assert counts.bonds.tolist() == bonds


def test_limits_are_uniform_or_those_of_the_data() -> None:
    graphs = random_graphs([5] * 20, 5)
    uniform = limits_of(noise_params(), graphs, CLASSES)
    assert [len(limit) for limit in uniform] == list(CLASSES)
    assert uniform.bonds.tolist() == [0.25] * 4
    marginal = limits_of(noise_params(limit="marginal"), graphs, CLASSES)
    assert torch.allclose(marginal.bonds, count_classes(graphs, CLASSES).bonds / 200)
    with pytest.raises(ValueError, match="bonds must be classes below 2, got 3"):
        limits_of(noise_params(limit="marginal"), graphs, Components(3, 2, 2))


def test_draws_have_the_frequencies_of_their_distribution() -> None:
    wanted = prompts([2] * 20_000, 2)
    p = Components(torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.9, 0.1]), torch.tensor([0.4, 0.3, 0.2, 0.1]))
    log_probs = wanted.masks.each(lambda mask, q: q.log().expand(*mask.shape, -1), p)
    drawn = draw_entries(log_probs, wanted.masks, generator=generator(1))
    for entries, q in zip(drawn, p, strict=True):
        assert (
            chisquare(torch.bincount(entries.flatten()).numpy(), (q.double() / q.double().sum() * entries.numel()).numpy()).pvalue
            > 1e-3
        )


def test_rows_have_noise_of_their_own() -> None:
    """The same distribution in every row, 30 entries each: equal rows would share their noise."""
    wanted = prompts([6] * 8, 6)
    start = graph_noise().draw_start(wanted, generator=generator())
    assert len({tuple(row) for row in start.bonds.tolist()}) == 8
    uniform = wanted.masks.each(lambda mask, k: torch.zeros(*mask.shape, k), CLASSES)
    drawn = draw_entries(uniform, wanted.masks, generator=generator())
    assert len({tuple(row) for row in drawn.bonds.tolist()}) == 8


def test_reverse_treats_every_component_by_itself() -> None:
    wanted, noise = prompts([3, 3], 3), graph_noise()
    noisy, t = random_entries(wanted), torch.tensor([2, 5])
    logits = wanted.masks.each(lambda mask, k: torch.randn(*mask.shape, k, generator=generator()), CLASSES)
    together = noise.reverse(logits, noisy, t)
    for part, z, x, transition in zip(together, logits, noisy, noise.transitions, strict=True):
        assert torch.equal(part, transition.reverse(z, x, t))
    known = noise.posterior(noisy, random_entries(wanted, seed=1), t)
    for part in known:
        assert torch.allclose(part.logsumexp(-1), torch.zeros(part.shape[:-1], dtype=torch.float64), atol=1e-13)
