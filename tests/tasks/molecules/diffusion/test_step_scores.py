import math
from functools import partial

import pytest
import torch
from graph_nodes import nodes_behind
from live_bytes import peak_of
from surrogates import surrogate
from tiny_graphs import generator, noise_params, policy, prompts, sample, trajectory_params
from torch import Tensor

from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.training.reference import frozen_copy
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.chunked_backward import backward_by_chunks
from grpo_pipeline.tasks.molecules.diffusion.params import TrajectoryParams, check_steps
from grpo_pipeline.tasks.molecules.diffusion.step_scores import StepScores, rescored, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories, choose_decisions
from grpo_pipeline.tasks.molecules.graphs.components import Components

SIZES = [4, 1, 3]


def score(
    model: GraphPolicy, rollouts: Trajectories, reference: GraphPolicy | None = None, temperature: float = 1.0, **changes: object
) -> StepScores:
    return score_steps(model, rollouts, params=trajectory_params(**changes), temperature=temperature, reference=reference)


def test_the_mean_divides_by_the_entries_that_have_a_choice() -> None:
    classes = Components(3, 1, 2)  # no charges: nothing is chosen there
    model = policy(classes=classes)
    rollouts = sample(model, prompts(SIZES, 4))
    total, mean = (score(model, rollouts, entry_reduction=name) for name in ("sum", "mean"))
    counts = torch.tensor([n + n * (n - 1) / 2 for n in SIZES], dtype=torch.float64)[:, None, None]
    assert torch.allclose(mean.logprobs * counts, total.logprobs, atol=1e-12)
    assert torch.allclose(mean.entropy * counts, total.entropy, atol=1e-12)
    with pytest.raises(ValueError, match="trajectories must have the 4 steps of the policy's noise, got 5"):
        score(policy(steps=4), rollouts)
    with pytest.raises(ValueError, match="steps_per_update must be at most the 5 steps of the noise, got 6"):
        check_steps(noise_params(5), trajectory_params(steps_per_update=6))
    with pytest.raises(ValueError, match="entry_reduction"):
        TrajectoryParams.model_validate(trajectory_params().model_dump() | {"entry_reduction": "median"})


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_eager_score_is_that_of_the_last_graph(temperature: float) -> None:
    """Summed by hand over the entries of z_0 for one row and time."""
    model = policy()
    rollouts = sample(model, prompts(SIZES, 4), temperature=temperature)
    ours = score(model, rollouts, temperature=temperature, estimator="eager").logprobs
    states = (rollouts.atoms, rollouts.charges, rollouts.bonds)
    for p, g, t in ((0, 1, 5), (2, 0, 3), (1, 2, 1)):
        wanted, noisy = prompts([SIZES[p]], 4), Components(*(part[p, g, t][None] for part in states))
        p_x0 = model.x0_logits(noisy, wanted, torch.tensor([t])).each(lambda z: (z / temperature).softmax(-1)[0])
        total = 0.0
        for probabilities, part, mask in zip(p_x0, states, wanted.masks, strict=True):
            total += sum(math.log(probabilities[i, int(part[p, g, 0, i])].item()) for i in mask[0].nonzero().flatten().tolist())
        assert ours[p, g, 5 - t].item() == pytest.approx(total, rel=1e-12)
    again = rescored(model, rollouts, params=trajectory_params(estimator="eager"), temperature=temperature)
    assert torch.equal(again.logprobs, ours)
    assert not again.logprobs.requires_grad
    # at t = 1 both estimators speak of the same step
    assert torch.allclose(ours[..., -1], rollouts.logprobs[..., -1], atol=1e-12)


@pytest.mark.parametrize("estimator", ["step", "eager"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_gradients_are_those_of_finite_differences(estimator: str, chunk: int | None) -> None:
    """Of a weighted sum of log-probabilities, entropies and KL, along random directions of all weights together."""
    model, reference = policy(3, layers=1), policy(3, layers=1, seed=5)
    rollouts = sample(model, prompts([3, 2], 3), 2)
    weights = torch.randn(3, *rollouts.actions.shape, dtype=torch.float64, generator=generator())

    def value() -> Tensor:
        scores = score(model, rollouts, reference, estimator=estimator, steps_per_chunk=chunk)
        return sum((w * part).sum() for w, part in zip(weights, (scores.logprobs, scores.entropy, scores.kl), strict=True))

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(value(), parameters)
    source, h = generator(1), 1e-5
    for _ in range(3):
        direction = [torch.randn(p.shape, dtype=torch.float64, generator=source) for p in parameters]
        ends = []
        for sign in (1, -2, 1):  # + h, - h, back to where it was
            with torch.no_grad():
                for p, d in zip(parameters, direction, strict=True):
                    p.add_(sign * h * d)
                ends.append(value().item())
        along = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)).item()
        assert along == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_chunks_change_neither_scores_nor_gradients_and_chosen_decisions_keep_theirs() -> None:
    model, reference = policy(), policy(seed=3)
    rollouts = sample(model, prompts(SIZES, 4))
    weights = torch.randn(rollouts.actions.shape, dtype=torch.float64, generator=generator())
    found = []
    for chunk in (None, 1, 2):
        scores = score(model, rollouts, reference, steps_per_chunk=chunk)
        loss = (weights * (scores.logprobs + scores.entropy + scores.kl)).sum()
        # Twice: reports of gradient norms walk the graph before the update does.
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        assert all(map(torch.equal, first, torch.autograd.grad(loss, list(model.parameters()))))
        found.append((scores.logprobs, *first))
    for cut in found[1:]:
        torch.testing.assert_close(cut, found[0], rtol=0, atol=1e-10)
    chosen = choose_decisions(rollouts, 2, generator=generator())
    part = score(model, chosen, steps_per_chunk=1).logprobs
    torch.testing.assert_close(found[0][0].gather(2, 5 - chosen.actions), part, rtol=0, atol=1e-12)


def test_the_reference_gets_no_gradient_and_the_kl_to_itself_is_zero() -> None:
    model, other = policy(), policy(seed=3)
    rollouts = sample(model, prompts(SIZES, 4))
    kl = score(model, rollouts, frozen_copy(model), steps_per_chunk=2).kl
    assert float(kl.detach().abs().max()) < 1e-13
    gradients = torch.autograd.grad(kl.sum(), [*model.parameters()])
    assert max(float(g.abs().max()) for g in gradients) < 1e-12  # of a KL at its minimum
    score(model, rollouts, other).kl.sum().backward()
    assert all(p.grad is None for p in other.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kl_of_certain_predictions_is_finite(dtype: torch.dtype) -> None:
    """Probabilities that underflow to 0 have a logarithm all the same; 0 log 0 nowhere."""
    model, other = policy().to(dtype), policy(seed=3).to(dtype)
    for m in (model, other):
        with torch.no_grad():
            for head in m.denoiser.heads.values():
                head.logits.weight.mul_(1e4)
    rollouts = sample(model, prompts(SIZES, 4))
    scores = score(model, rollouts, other)
    (scores.logprobs + scores.entropy + scores.kl).sum().backward()
    for part in (scores.logprobs, scores.entropy, scores.kl, *(p.grad for p in model.parameters())):
        assert bool(part.isfinite().all())
    assert float(scores.kl.detach().max()) > 100.0
    assert bool((scores.kl >= -1e-3).all())


def loss_of(advantages: Tensor, denominator: int, scores: StepScores, rollouts: Trajectories) -> Tensor:
    """Clipped surrogate with ratios of single decisions, plus KL and entropy, all over the denominator of all steps."""
    known = (scores.logprobs, rollouts.logprobs, advantages, rollouts.is_valid)
    loss = policy_loss(*known, surrogate(reduction="per_decision"), denominator=float(denominator))
    return loss + (0.1 * scores.kl - 0.01 * scores.entropy).sum() / denominator


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_one_backward_per_chunk_adds_up_to_the_gradient_of_the_loss(chunk: int | None) -> None:
    drawn_by, model, reference = policy(), policy(), policy(seed=3)
    with torch.no_grad():
        for p in model.parameters():  # off-policy, so that some ratios are clipped
            p.add_(0.03 * torch.randn(p.shape, dtype=p.dtype, generator=generator(9)))
    rollouts = choose_decisions(sample(drawn_by, prompts([4, 1, 3], 4)), 4, generator=generator())
    advantages = torch.randn(3, 3, dtype=torch.float64, generator=generator())
    loss = partial(loss_of, advantages, rollouts.actions.numel())
    whole = loss(score(model, rollouts, reference), rollouts)
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    params = trajectory_params(steps_per_chunk=chunk)
    total = backward_by_chunks(model, rollouts, loss, params=params, temperature=1.0, reference=reference)
    torch.testing.assert_close(total, whole.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close([p.grad for p in model.parameters()], [*wanted], rtol=0, atol=1e-12)
    assert not total.requires_grad


def test_the_memory_of_an_update_does_not_grow_with_the_number_of_steps() -> None:
    """Of both ways; without chunks it does grow, and the stored graphs themselves, a byte per entry, are not part of it.

    Nor do the nodes of a graph, which counted bytes do not see: between forward and backward a chunk leaves one.
    """
    peaks, nodes = [], []
    for steps in (2, 8):
        model = policy(steps, layers=1)
        rollouts = sample(model, prompts([6, 5], 6), 2)

        def update(chunk: int | None, model=model, rollouts=rollouts) -> None:
            score(model, rollouts, steps_per_chunk=chunk).logprobs.sum().backward()

        def by_chunks(model=model, rollouts=rollouts) -> None:
            params = trajectory_params(steps_per_chunk=1)
            backward_by_chunks(model, rollouts, lambda scores, _: scores.logprobs.sum(), params=params, temperature=1.0)

        update(None)  # makes room for the gradients
        peaks.append([peak_of(lambda: update(None)), peak_of(lambda: update(1)), peak_of(by_chunks)])
        nodes.append(nodes_behind(score(model, rollouts, steps_per_chunk=1).logprobs))
    plain, again, apart = (many / few for few, many in zip(*peaks, strict=True))
    assert plain > 2.5
    assert max(again, apart) < 1.02
    assert peaks[1][1] < peaks[1][0] / 5
    assert nodes[1] - nodes[0] == 6
