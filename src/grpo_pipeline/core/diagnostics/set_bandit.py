"""A bandit whose samples are ordered sets of cells, so that the exact gradient over several decisions can be enumerated.

Four prompts of twelve cells, three of which are the prompt's own; a sample takes three cells, one after the other, and hits with
two good ones. Beside the hit each prompt pays an amount of its own, whatever is taken: it says nothing about the cells, so a
baseline of the prompt takes it away, and a baseline of the whole batch lets it drown the hits. What is known exactly
(``hit_rate`` and its gradient) is a sum over all ordered sets, without the functions that it is to check.
"""

from collections.abc import Callable
from itertools import permutations

import torch
from torch import Tensor

from grpo_pipeline.core.diagnostics.bandit import Bandit, gradient_generator, start_generator
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.losses import policy_loss
from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k, plackett_luce_logprobs
from grpo_pipeline.core.types import replicate, to_rows

PROMPTS, CELLS, GOOD, PICKS, GROUP = 4, 12, 3, 3, 4
SPREAD, PAY = 1.0, 10.0
DRAWS, COPIES = 4, 1024

Likelihood = Callable[..., Tensor]
Compare = Callable[[Tensor], Tensor]


def equal_logits() -> Tensor:
    """Return logits [P, V] of the uniform policy."""
    return torch.zeros(PROMPTS, CELLS, dtype=torch.float64)


def shuffled_logits(seed: int) -> Tensor:
    """Return logits [P, V] that are evenly spaced, in random order, each prompt's row moved on like its good cells.

    All prompts then have one hit rate, and normalising the rewards of a group scales every prompt's gradient alike.
    """
    order = torch.randperm(CELLS, generator=start_generator(seed, PICKS))
    row = torch.linspace(-SPREAD, SPREAD, CELLS, dtype=torch.float64)[order]  # [V]
    return torch.stack([row.roll(p * GOOD) for p in range(PROMPTS)])


def good_cells() -> Tensor:
    """Return bool [P, V]: True for the cells p * GOOD to p * GOOD + GOOD - 1 of prompt p."""
    return torch.arange(CELLS) // GOOD == torch.arange(PROMPTS)[:, None]


def rewards(actions: Tensor, prompts: Tensor) -> Tensor:
    """Return 1 for two or three good cells and 0 for fewer, more by the pay of the prompt, float64 [P, G].

    Args:
        actions: int64 [P, G, PICKS].
        prompts: int64 [P], the number of each row's prompt.
    """
    hits = (actions // GOOD == prompts[:, None, None]).sum(-1)  # [P, G]
    return (hits >= 2).double() + PAY * prompts[:, None]


def hit_rate(logits: Tensor) -> Tensor:
    """Return the probability of a hit, the mean over prompts: the sum over all ordered sets of three; exact, with gradient.

    p(a, b, c) = p_a * p_b / (1 - p_a) * p_c / (1 - p_a - p_b)
    """
    p = logits.softmax(dim=-1)  # [P, V]
    # One axis for each of the three picks, broadcast to [P, V, V, V].
    a, b, c = p[:, :, None, None], p[:, None, :, None], p[:, None, None, :]
    same = torch.eye(CELLS, dtype=torch.bool)
    # [V, V, V]: three different cells.
    is_set = ~(same[:, :, None] | same[:, None, :] | same[None, :, :])
    left = (1 - a - b).masked_fill(~is_set, 1.0)  # [P, V, V, V]
    good = good_cells().long()
    found = good[:, :, None, None] + good[:, None, :, None] + good[:, None, None, :]  # [P, V, V, V]
    probability = (a * b / (1 - a) * c / left) * is_set  # [P, V, V, V]
    return (probability * (found >= 2)).sum(dim=(1, 2, 3)).mean()


def exact_logprobs(logits: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability [P, G] of whole ordered sets, each cell out of those that are left; no gradient.

    Args:
        logits: [P, V].
        actions: int64 [P, G, PICKS].
    """
    p = logits.detach().softmax(dim=-1)
    picked = p[:, None].expand(*actions.shape[:2], -1).gather(2, actions)  # [P, G, PICKS]
    left = 1 - (picked.cumsum(dim=-1) - picked)  # [P, G, PICKS]
    return (picked / left).log().sum(dim=-1)


def enumerated_gradient(logits: Tensor) -> Tensor:
    """Return the gradient [P, V] of the hit rate."""
    leaf = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(hit_rate(leaf), leaf)[0]


def group_advantages(rewards: Tensor) -> Tensor:
    """Compare as training does."""
    return compute_advantages(rewards).values


def batch_advantages(rewards: Tensor) -> Tensor:
    """Compare with the defect that the baseline is the mean over the whole batch."""
    return (rewards - rewards.mean()) / rewards.std()


def likelihood_mass(*, seed: int, likelihood: Likelihood = plackett_luce_logprobs) -> float:
    """Return how close the probabilities of all ordered sets come to 1 in sum: 1 less the error of the worst prompt."""
    logits = shuffled_logits(seed)
    # [P, 1320, PICKS]
    sets = torch.tensor(list(permutations(range(CELLS), PICKS))).expand(PROMPTS, -1, -1)
    logprobs = likelihood(logits, sets, is_allowed=torch.ones_like(logits, dtype=torch.bool))
    return 1.0 - float((logprobs.sum(dim=-1).exp().sum(dim=-1) - 1.0).abs().max())


def gradient_cosine(
    *,
    seed: int,
    likelihood: Likelihood = plackett_luce_logprobs,
    compare: Compare = group_advantages,
) -> float:
    """Return the cosine of the estimated gradient with the enumerated one, at shuffled logits.

    Args:
        seed: of the samples.
        likelihood: of ordered sets under logits, as ``plackett_luce_logprobs``; the defect is ``independent_logprobs``.
        compare: rewards [P, G] -> advantages [P, G].
    """
    start = shuffled_logits(seed)
    policy, allowed = Bandit(start), torch.ones(PROMPTS * COPIES, CELLS, dtype=torch.bool)
    prompts = to_rows(replicate(torch.arange(PROMPTS), COPIES))  # [P * COPIES]
    for i in range(DRAWS):
        generator = gradient_generator(seed, i, PICKS)
        logits = policy(COPIES)
        actions = gumbel_top_k(
            logits.detach(), PICKS, GROUP, generator=generator, is_allowed=allowed
        )  # [P * COPIES, G, PICKS]
        logprobs = likelihood(logits, actions, is_allowed=allowed)
        is_valid = torch.ones_like(actions, dtype=torch.bool)
        advantages = compare(rewards(actions, prompts))
        loss = policy_loss(
            logprobs, logprobs.detach(), advantages, is_valid, algorithm="grpo", ratio_level="joint"
        )
        torch.autograd.backward(loss)
    found = policy.logits.grad
    if found is None:
        return 0.0
    return float(
        torch.cosine_similarity(-found.flatten(), enumerated_gradient(start).flatten(), dim=0)
    )
