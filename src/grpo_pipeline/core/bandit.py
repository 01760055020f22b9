"""A bandit whose gradients can be enumerated: eight prompts of 64 cells each, of which the prompt's own eight pay 1.

Each prompt has good cells of its own, so that code which hands a reward to another prompt's sample cannot learn. What is
known exactly (``hit_rate``, ``entropy`` and their gradients) is written out here, without the functions that it is to check.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from grpo_pipeline.core.groups import replicate, to_rows
from grpo_pipeline.core.sampling import gumbel_top_k, plackett_luce_logprobs
from grpo_pipeline.core.types import Rollouts

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
    row = torch.linspace(-spread, spread, CELLS, dtype=torch.float64)[order]
    return torch.stack([row.roll(p * GOOD) for p in range(PROMPTS)])


def good_cells() -> Tensor:
    """Return bool [P, V]: True for the cells p * GOOD to p * GOOD + GOOD - 1 of prompt p."""
    owner = torch.arange(CELLS) // GOOD
    return owner == torch.arange(PROMPTS)[:, None]


def draw(policy: Bandit, *, generator: torch.Generator, copies: int = 1) -> Rollouts:
    """Draw GROUP cells for each prompt and copy of it, [P * copies, G, 1]."""
    with torch.no_grad():
        logits = policy(copies)
        actions = gumbel_top_k(logits, 1, GROUP, generator=generator, is_allowed=_all_allowed(logits))
        logprobs = plackett_luce_logprobs(logits, actions, is_allowed=_all_allowed(logits))
    return Rollouts(actions=actions, logprobs=logprobs, is_valid=torch.ones_like(actions, dtype=torch.bool))


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
