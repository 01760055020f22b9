"""A bandit whose exact gradient can be enumerated: eight prompts of 64 cells each, of which the prompt's own eight pay 1.

Each prompt has good cells of its own, so that code which hands a reward to another prompt's sample cannot learn. What is
known exactly (``hit_rate``, ``entropy`` and their gradients) is written out here, without the functions that it is to check.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.losses import policy_loss
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.sampling.plackett_luce import (
    categorical_entropy,
    gumbel_top_k,
    plackett_luce_logprobs,
)
from grpo_pipeline.core.training.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts, replicate, to_rows

PROMPTS, CELLS, GOOD, GROUP = 8, 64, 8, 4


class Bandit(nn.Module):
    """A policy that is a table of logits [P, V], float64.

    Args:
        logits: [P, V], the start.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, copies: int = 1) -> Tensor:
        """Return the logits, each prompt's row ``copies`` times, [P * copies, V]."""
        return to_rows(replicate(self.logits, copies))


def equal_logits() -> Tensor:
    """Return logits [P, V] of the uniform policy; its hit rate is GOOD / CELLS = 0.125."""
    return torch.zeros(PROMPTS, CELLS, dtype=torch.float64)


def shuffled_logits(*, spread: float, generator: torch.Generator) -> Tensor:
    """Return logits [P, V] that are evenly spaced from -spread to spread, in random order.

    Prompt p's row is prompt 0's, moved on by p * GOOD cells like its good cells, so that all prompts have one hit rate. Then
    normalising the rewards of a group scales every prompt's expected gradient alike and does not turn the whole.
    """
    order = torch.randperm(CELLS, generator=generator)
    row = torch.linspace(-spread, spread, CELLS, dtype=torch.float64)[order]  # [V]
    return torch.stack([row.roll(p * GOOD) for p in range(PROMPTS)])


def good_cells() -> Tensor:
    """Return bool [P, V]: True for the cells p * GOOD to p * GOOD + GOOD - 1 of prompt p."""
    owner = torch.arange(CELLS) // GOOD  # [V]
    return owner == torch.arange(PROMPTS)[:, None]


def draw(policy: Bandit, *, generator: torch.Generator, copies: int = 1) -> Rollouts:
    """Draw GROUP cells for each prompt and copy of it, [P * copies, G, 1]."""
    with torch.no_grad():
        logits = policy(copies)
        actions = gumbel_top_k(
            logits, 1, GROUP, generator=generator, is_allowed=_all_allowed(logits)
        )
        logprobs = plackett_luce_logprobs(logits, actions, is_allowed=_all_allowed(logits))
    return Rollouts(
        actions=actions, logprobs=logprobs, is_valid=torch.ones_like(actions, dtype=torch.bool)
    )


def score(policy: Bandit, rollouts: Rollouts) -> Tensor:
    """Return the log-probabilities [P * copies, G, 1] of the stored cells, with gradient."""
    logits = policy(rollouts.actions.shape[0] // PROMPTS)
    return plackett_luce_logprobs(logits, rollouts.actions, is_allowed=_all_allowed(logits))


def rewards(rollouts: Rollouts) -> Tensor:
    """Return 1.0 for a good cell and 0.0 for another, float64 [P * copies, G]."""
    copies = rollouts.actions.shape[0] // PROMPTS
    return to_rows(replicate(good_cells(), copies)).gather(1, rollouts.actions[..., 0]).double()


def hit_rate(logits: Tensor) -> Tensor:
    """Return the probability that a cell is good, the mean over prompts; exact, with gradient."""
    return (logits.softmax(dim=-1) * good_cells()).sum(dim=-1).mean()


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the policy in nats, the mean over prompts; exact, with gradient."""
    p = logits.softmax(dim=-1)
    return -(p * p.log()).sum(dim=-1).mean()


def enumerated_gradient(value: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Return the gradient [P, V] of ``hit_rate`` or ``entropy``: a sum over all cells, no sample."""
    leaf = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(value(leaf), leaf)[0]


def _all_allowed(logits: Tensor) -> Tensor:
    return torch.ones_like(logits, dtype=torch.bool)


# Objectives of the self-check's bandit, sound and defective, and the figures that they reach.

LEARNING_RATE = 0.1
GRADIENT_DRAWS, COPIES_PER_DRAW = 4, 512
ENTROPY_STEPS, ENTROPY_RATE = 100, 8.0
SPREAD, PEAKED = 2.0, 6.0

Objective = Callable[[Bandit, Rollouts, Tensor, torch.Generator], Tensor]
Bonus = Callable[[Bandit, Rollouts], Tensor]


def surrogate(algorithm: Literal["grpo", "reinforce"]) -> Objective:
    """Return the objective as training uses it: the stored cells, scored again, under ``policy_loss``."""

    def objective(
        policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator
    ) -> Tensor:
        logprobs = score(policy, rollouts)
        return policy_loss(
            logprobs, rollouts.logprobs, advantages, rollouts.is_valid, algorithm=algorithm
        )

    return objective


def resampled(objective: Objective) -> Objective:
    """Return the objective with the defect that new cells are drawn, and paired with the advantages of the old ones."""

    def defect(
        policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator
    ) -> Tensor:
        fresh = draw(policy, generator=generator, copies=len(advantages) // PROMPTS)
        return objective(policy, fresh, advantages, generator)

    return defect


def flipped(objective: Objective) -> Objective:
    """Return the objective with the defect that its sign is wrong."""
    return lambda policy, rollouts, advantages, generator: objective(
        policy, rollouts, -advantages, generator
    )


def misplaced(objective: Objective) -> Objective:
    """Return the objective with the defect that each prompt gets the advantages of the prompt before it."""

    def defect(
        policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator
    ) -> Tensor:
        copies = len(advantages) // PROMPTS
        return objective(policy, rollouts, advantages.roll(copies, dims=0), generator)

    return defect


def analytic_bonus(policy: Bandit, rollouts: Rollouts) -> Tensor:
    """Return the entropy of the policy as training computes it, the mean over prompts."""
    logits = policy()
    return categorical_entropy(logits, torch.ones_like(logits, dtype=torch.bool)).mean()


def pseudo_bonus(policy: Bandit, rollouts: Rollouts) -> Tensor:
    """Return the defect: minus the mean log-probability of the samples.

    Its value estimates the entropy, but its expected gradient is -E[grad log p] = 0.
    """
    return -score(policy, rollouts).mean()


def start_generator(seed: int, step: int) -> Generator:
    """Return the generator that draws where a bandit starts."""
    return step_generator(seed, step, stream=Stream.BANDIT_START)


def gradient_generator(seed: int, *places: int) -> Generator:
    """Return the generator of the samples that one estimate of the gradient is made from."""
    return step_generator(seed, *places, stream=Stream.BANDIT_GRADIENT)


def gradient_cosine(objective: Objective, *, seed: int) -> float:
    """Return the cosine of the estimated gradient with the enumerated gradient of the hit rate, at shuffled logits."""
    start = shuffled_logits(spread=SPREAD, generator=start_generator(seed, 0))
    policy = Bandit(start)
    # The gradients of all draws add up in ``.grad``; their number is a factor that a cosine does not see.
    for i in range(GRADIENT_DRAWS):
        generator = gradient_generator(seed, i)
        rollouts = draw(policy, generator=generator, copies=COPIES_PER_DRAW)
        loss = objective(policy, rollouts, compute_advantages(rewards(rollouts)).values, generator)
        torch.autograd.backward(loss)
    return _cosine(_ascent(policy), enumerated_gradient(hit_rate, start))


def train(
    objective: Objective, *, seed: int, steps: int, update_epochs: int, until: float
) -> tuple[float, int]:
    """Train from the uniform policy until the hit rate is ``until``, for ``steps`` batches at most.

    Returns:
        The hit rate reached, and the batches used.
    """
    state = _start(equal_logits())
    reached = float(hit_rate(_logits(state)))
    while state.step < steps and not reached >= until:
        state = _learn(
            state, objective, step_generator(seed, state.step), update_epochs=update_epochs
        )
        reached = float(hit_rate(_logits(state)))
    return reached, state.step


def best_logprob_gain(objective: Objective, *, seed: int) -> float:
    """Return the smallest change, over the prompts that do not tie, of the best sample's log-probability in one update."""
    state, generator = _start(equal_logits()), step_generator(seed, 0)
    rollouts = draw(_policy(state), generator=generator)
    reward = rewards(rollouts)
    advantages = compute_advantages(reward)
    before = score(_policy(state), rollouts).detach()
    loss = objective(_policy(state), rollouts, advantages.values, generator)
    state, _ = apply_update(state, loss, max_grad_norm=1.0)
    # Of the stored samples, not of fresh ones: the update must have raised the best sample of each prompt.
    gain = (score(_policy(state), rollouts).detach() - before)[..., 0]  # [P, G]
    best = gain.gather(1, reward.argmax(dim=1, keepdim=True))[:, 0]  # [P]
    return min(best[~advantages.is_tied].tolist(), default=math.nan)


def bonus_gradient_cosine(bonus: Bonus, *, seed: int) -> float:
    """Return the cosine of the bonus's gradient with the enumerated gradient of the entropy, at peaked logits."""
    start = _peaked(seed)
    policy = Bandit(start)
    for i in range(GRADIENT_DRAWS):
        rollouts = draw(
            policy,
            generator=step_generator(seed, i, stream=Stream.BANDIT_ENTROPY),
            copies=COPIES_PER_DRAW,
        )
        torch.autograd.backward(-bonus(policy, rollouts))
    return _cosine(_ascent(policy), enumerated_gradient(entropy, start))


def entropy_gain(bonus: Bonus, *, seed: int) -> float:
    """Return by how many nats the bonus alone raises the entropy, by plain gradient steps from peaked logits.

    Plain steps, because Adam divides a rare large gradient by its own size: that lifts rare cells, and the entropy rises even
    where the expected gradient is 0.
    """
    policy = Bandit(_peaked(seed))
    state = TrainState(
        policy, torch.optim.SGD(policy.parameters(), lr=ENTROPY_RATE), None, 0, 0, seed
    )
    before = float(entropy(_logits(state)))
    for step in range(ENTROPY_STEPS):
        rollouts = draw(policy, generator=step_generator(seed, step, stream=Stream.BANDIT_ENTROPY))
        state, _ = apply_update(state, -bonus(policy, rollouts), max_grad_norm=None)
    return float(entropy(_logits(state))) - before


def _start(logits: Tensor) -> TrainState:
    policy = Bandit(logits)
    optimizer = build_optimizer({"policy": (list(policy.parameters()), LEARNING_RATE)})
    return TrainState(policy, optimizer, None, step=0, epoch=0, generator_seed=0)


def _learn(
    state: TrainState, objective: Objective, generator: torch.Generator, *, update_epochs: int
) -> TrainState:
    """Collect one batch and update on it ``update_epochs`` times."""
    rollouts = draw(_policy(state), generator=generator)
    advantages = compute_advantages(rewards(rollouts)).values
    for _ in range(update_epochs):
        state, _ = apply_update(
            state, objective(_policy(state), rollouts, advantages, generator), max_grad_norm=1.0
        )
    return advance(state)


def _policy(state: TrainState) -> Bandit:
    policy = state.policy
    if not isinstance(policy, Bandit):
        raise TypeError(
            f"the policy of a self-check must be a Bandit, got {type(policy).__name__}; build it with Bandit"
        )
    return policy


def _logits(state: TrainState) -> Tensor:
    return _policy(state).logits.detach()


def _peaked(seed: int) -> Tensor:
    return shuffled_logits(spread=PEAKED, generator=start_generator(seed, 0))


def _ascent(policy: Bandit) -> Tensor:
    """Return the direction in which a step would move the logits: minus the gradient of the loss; 0 without one."""
    return torch.zeros_like(policy.logits) if policy.logits.grad is None else -policy.logits.grad


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0))
