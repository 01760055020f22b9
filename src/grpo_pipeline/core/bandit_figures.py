"""Objectives of the self-check's bandit, sound and defective, and the figures that they reach."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.core import bandit
from grpo_pipeline.core.advantages import compute_advantages
from grpo_pipeline.core.bandit import Bandit
from grpo_pipeline.core.losses import policy_loss
from grpo_pipeline.core.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.sampling import categorical_entropy
from grpo_pipeline.core.types import Rollouts, TrainState

LEARNING_RATE = 0.1
GRADIENT_DRAWS, COPIES_PER_DRAW = 4, 512
ENTROPY_STEPS, ENTROPY_RATE = 100, 8.0
SPREAD, PEAKED = 2.0, 6.0
# Streams of random numbers; training takes 0, a new one for each step.

Objective = Callable[[Bandit, Rollouts, Tensor, torch.Generator], Tensor]
Bonus = Callable[[Bandit, Rollouts], Tensor]


def surrogate(algorithm: Literal["grpo", "reinforce"]) -> Objective:
    """Return the objective as training uses it: the stored cells, scored again, under ``policy_loss``."""

    def objective(policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator) -> Tensor:
        logprobs = bandit.score(policy, rollouts)
        return policy_loss(logprobs, rollouts.logprobs, advantages, rollouts.is_valid, algorithm=algorithm)

    return objective


def resampled(objective: Objective) -> Objective:
    """Return the objective with the defect that new cells are drawn, and paired with the advantages of the old ones."""

    def defect(policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator) -> Tensor:
        fresh = bandit.draw(policy, generator=generator, copies=len(advantages) // bandit.PROMPTS)
        return objective(policy, fresh, advantages, generator)

    return defect


def flipped(objective: Objective) -> Objective:
    """Return the objective with the defect that its sign is wrong."""
    return lambda policy, rollouts, advantages, generator: objective(policy, rollouts, -advantages, generator)


def misplaced(objective: Objective) -> Objective:
    """Return the objective with the defect that each prompt gets the advantages of the prompt before it."""

    def defect(policy: Bandit, rollouts: Rollouts, advantages: Tensor, generator: torch.Generator) -> Tensor:
        copies = len(advantages) // bandit.PROMPTS
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
    return -bandit.score(policy, rollouts).mean()


def gradient_cosine(objective: Objective, *, seed: int) -> float:
    """Return the cosine of the estimated gradient with the enumerated gradient of the hit rate, at shuffled logits."""
    start = bandit.shuffled_logits(spread=SPREAD, generator=step_generator(seed, 0, stream=Stream.BANDIT_START))
    policy = Bandit(start)
    for i in range(GRADIENT_DRAWS):
        generator = step_generator(seed, i, stream=Stream.BANDIT_GRADIENT)
        rollouts = bandit.draw(policy, generator=generator, copies=COPIES_PER_DRAW)
        loss = objective(policy, rollouts, compute_advantages(bandit.rewards(rollouts)).values, generator)
        torch.autograd.backward(loss)
    return _cosine(_ascent(policy), bandit.enumerated_gradient(bandit.hit_rate, start))


def train(objective: Objective, *, seed: int, steps: int, update_epochs: int, until: float) -> tuple[float, int]:
    """Train from the uniform policy until the hit rate is ``until``, for ``steps`` batches at most.

    Returns:
        The hit rate reached, and the batches used.
    """
    state = _start(bandit.equal_logits())
    reached = float(bandit.hit_rate(_logits(state)))
    while state.step < steps and not reached >= until:
        state = _learn(state, objective, step_generator(seed, state.step), update_epochs=update_epochs)
        reached = float(bandit.hit_rate(_logits(state)))
    return reached, state.step


def best_logprob_gain(objective: Objective, *, seed: int) -> float:
    """Return the smallest change, over the prompts that do not tie, of the best sample's log-probability in one update."""
    state, generator = _start(bandit.equal_logits()), step_generator(seed, 0)
    rollouts = bandit.draw(_policy(state), generator=generator)
    reward = bandit.rewards(rollouts)
    advantages = compute_advantages(reward)
    before = bandit.score(_policy(state), rollouts).detach()
    loss = objective(_policy(state), rollouts, advantages.values, generator)
    state, _ = apply_update(state, loss, max_grad_norm=1.0)
    gain = (bandit.score(_policy(state), rollouts).detach() - before)[..., 0]
    best = gain.gather(1, reward.argmax(dim=1, keepdim=True))[:, 0]
    return min(best[~advantages.is_tied].tolist(), default=math.nan)


def bonus_gradient_cosine(bonus: Bonus, *, seed: int) -> float:
    """Return the cosine of the bonus's gradient with the enumerated gradient of the entropy, at peaked logits."""
    start = _peaked(seed)
    policy = Bandit(start)
    for i in range(GRADIENT_DRAWS):
        rollouts = bandit.draw(policy, generator=step_generator(seed, i, stream=Stream.BANDIT_ENTROPY), copies=COPIES_PER_DRAW)
        torch.autograd.backward(-bonus(policy, rollouts))
    return _cosine(_ascent(policy), bandit.enumerated_gradient(bandit.entropy, start))


def entropy_gain(bonus: Bonus, *, seed: int) -> float:
    """Return by how many nats the bonus alone raises the entropy, by plain gradient steps from peaked logits.

    Plain steps, because Adam divides a rare large gradient by its own size: that lifts rare cells, and the entropy rises even
    where the expected gradient is 0.
    """
    policy = Bandit(_peaked(seed))
    state = TrainState(policy, torch.optim.SGD(policy.parameters(), lr=ENTROPY_RATE), None, 0, 0, seed)
    before = float(bandit.entropy(_logits(state)))
    for step in range(ENTROPY_STEPS):
        rollouts = bandit.draw(policy, generator=step_generator(seed, step, stream=Stream.BANDIT_ENTROPY))
        state, _ = apply_update(state, -bonus(policy, rollouts), max_grad_norm=None)
    return float(bandit.entropy(_logits(state))) - before


def _start(logits: Tensor) -> TrainState:
    policy = Bandit(logits)
    optimizer = build_optimizer({"policy": (list(policy.parameters()), LEARNING_RATE)})
    return TrainState(policy, optimizer, None, step=0, epoch=0, generator_seed=0)


def _learn(state: TrainState, objective: Objective, generator: torch.Generator, *, update_epochs: int) -> TrainState:
    """Collect one batch and update on it ``update_epochs`` times."""
    rollouts = bandit.draw(_policy(state), generator=generator)
    advantages = compute_advantages(bandit.rewards(rollouts)).values
    for _ in range(update_epochs):
        state, _ = apply_update(state, objective(_policy(state), rollouts, advantages, generator), max_grad_norm=1.0)
    return advance(state)


def _policy(state: TrainState) -> Bandit:
    policy = state.policy
    if not isinstance(policy, Bandit):
        raise TypeError(f"the policy of a self-check must be a Bandit, got {type(policy).__name__}; build it with Bandit")
    return policy


def _logits(state: TrainState) -> Tensor:
    return _policy(state).logits.detach()


def _peaked(seed: int) -> Tensor:
    return bandit.shuffled_logits(spread=PEAKED, generator=step_generator(seed, 0, stream=Stream.BANDIT_START))


def _ascent(policy: Bandit) -> Tensor:
    """Return the direction in which a step would move the logits: minus the gradient of the loss; 0 without one."""
    return torch.zeros_like(policy.logits) if policy.logits.grad is None else -policy.logits.grad


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0))
