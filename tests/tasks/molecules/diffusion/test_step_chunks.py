import pytest
import torch
from graph_nodes import nodes_behind
from live_bytes import peak_of
from tiny_graphs import generator, policy, prompts, sample, trajectory_params
from torch import Tensor

from grpo_pipeline.core.policy_gradient.losses import policy_loss
from grpo_pipeline.tasks.molecules.diffusion.step_scores import StepScores, backward_by_chunks, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories, choose_decisions


def loss_of(advantages: Tensor, denominator: int, scores: StepScores, rollouts: Trajectories) -> Tensor:
    """Clipped surrogate with ratios of single decisions, plus KL and entropy, all over the denominator of all steps."""
    surrogate = policy_loss(
        scores.logprobs,
        rollouts.logprobs,
        advantages,
        rollouts.is_valid,
        algorithm="grpo",
        reduction="per_decision",
        denominator=float(denominator),
    )
    return surrogate + (0.1 * scores.kl - 0.01 * scores.entropy).sum() / denominator


@pytest.mark.parametrize("chunk", [1, 2, 4, None])
def test_one_backward_per_chunk_adds_up_to_the_gradient_of_the_loss(chunk: int | None) -> None:
    drawn_by, model, reference = policy(), policy(), policy(seed=3)
    with torch.no_grad():
        for p in model.parameters():  # off-policy, so that some ratios are clipped
            p.add_(0.03 * torch.randn(p.shape, dtype=p.dtype, generator=generator(9)))
    rollouts = choose_decisions(sample(drawn_by, prompts([4, 1, 3], 4)), 4, generator=generator())
    advantages = torch.randn(3, 3, dtype=torch.float64, generator=generator())
    count = rollouts.actions.numel()
    scores = score_steps(model, rollouts, params=trajectory_params(), temperature=1.0, reference=reference)
    whole = loss_of(advantages, count, scores, rollouts)
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    total = backward_by_chunks(
        model,
        rollouts,
        lambda part, kept: loss_of(advantages, count, part, kept),
        params=trajectory_params(steps_per_chunk=chunk),
        temperature=1.0,
        reference=reference,
    )
    assert torch.allclose(total, whole.detach(), rtol=1e-12)
    assert all(torch.allclose(p.grad, g, atol=1e-12) for p, g in zip(model.parameters(), wanted, strict=True))
    assert not total.requires_grad


def test_the_memory_of_an_update_does_not_grow_with_the_number_of_steps() -> None:
    """Of both ways; without chunks it does grow, and the stored graphs themselves, a byte per entry, are not part of it."""
    peaks: dict[str, list[int]] = {"plain": [], "again": [], "by_chunks": []}
    for steps in (2, 8):
        model = policy(steps, layers=1)
        rollouts = sample(model, prompts([6, 5], 6), 2)

        def update(chunk: int | None, model=model, rollouts=rollouts) -> None:
            scores = score_steps(model, rollouts, params=trajectory_params(steps_per_chunk=chunk), temperature=1.0)
            scores.logprobs.sum().backward()

        def by_chunks(model=model, rollouts=rollouts) -> None:
            params = trajectory_params(steps_per_chunk=1)
            backward_by_chunks(model, rollouts, lambda scores, _: scores.logprobs.sum(), params=params, temperature=1.0)

        update(None)  # makes room for the gradients
        peaks["plain"].append(peak_of(lambda: update(None)))
        peaks["again"].append(peak_of(lambda: update(1)))
        peaks["by_chunks"].append(peak_of(by_chunks))
    assert peaks["plain"][1] > 2.5 * peaks["plain"][0]
    assert peaks["again"][1] < 1.02 * peaks["again"][0]
    assert peaks["by_chunks"][1] < 1.02 * peaks["by_chunks"][0]
    assert peaks["again"][1] < peaks["plain"][1] / 5


def test_between_forward_and_backward_a_chunk_leaves_one_node() -> None:
    """Counted bytes do not see the nodes of a graph, the memory of a process does: it grew with the number of steps by them."""
    found = []
    for steps in (2, 8):
        model = policy(steps, layers=1)
        rollouts = sample(model, prompts([6, 5], 6), 2)
        scores = score_steps(model, rollouts, params=trajectory_params(steps_per_chunk=1), temperature=1.0)
        found.append(nodes_behind(scores.logprobs))
    assert found[1] - found[0] == 6
