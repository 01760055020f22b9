"""A bandit with a known answer: the functions of core, put together, learn from reward; the classic defects do not."""

import pytest
import torch
from torch import nn

from grpo_pipeline.core.advantages import compute_advantages
from grpo_pipeline.core.losses import policy_loss
from grpo_pipeline.core.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.sampling import gumbel_top_k, log_policy, plackett_luce_logprobs
from grpo_pipeline.core.types import TrainState

CELLS, GOOD, GROUP, PROMPTS, EPOCHS = 64, 8, 4, 8, 4


class Bandit(nn.Module):
    """One table of logits for all prompts; cells 0..7 of 64 are good."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(CELLS))

    def forward(self):
        return self.logits.expand(PROMPTS, CELLS)

    def hit_rate(self):
        """Exact probability that the first choice is good; 8 / 64 = 0.125 before training."""
        return float(log_policy(self.logits[None], torch.ones(1, CELLS, dtype=torch.bool))[0, :GOOD].exp().sum().detach())


def train(*, algorithm="grpo", level="decision", k=1, steps=400, defect=None):
    policy = Bandit()
    state = TrainState(policy, build_optimizer({"policy": (list(policy.parameters()), 0.03)}), None, 0, 0, 0)
    allowed = torch.ones(PROMPTS, CELLS, dtype=torch.bool)
    assert policy.hit_rate() == pytest.approx(GOOD / CELLS)
    for step in range(steps):
        generator = step_generator(0, step)
        actions = gumbel_top_k(policy(), k, GROUP, generator=generator, is_allowed=allowed)
        old = plackett_luce_logprobs(policy(), actions, is_allowed=allowed).detach()
        rewards = (actions < GOOD).double().mean(dim=-1)
        advantages = compute_advantages(rewards).values * (-1 if defect == "flipped sign" else 1)
        for _ in range(1 if algorithm == "reinforce" else EPOCHS):
            if defect == "re-sampled actions":
                actions = gumbel_top_k(policy(), k, GROUP, generator=generator, is_allowed=allowed)
                old = plackett_luce_logprobs(policy(), actions, is_allowed=allowed).detach()
            logprobs = plackett_luce_logprobs(policy(), actions, is_allowed=allowed)
            is_valid = torch.ones_like(actions, dtype=torch.bool)
            loss = policy_loss(logprobs, old, advantages, is_valid, algorithm=algorithm, ratio_level=level)
            state, _ = apply_update(state, loss, max_grad_norm=1.0)
        state = advance(state)
        if step % 20 == 0 and policy.hit_rate() >= 0.98:
            break
    return policy.hit_rate()


@pytest.mark.parametrize(
    ("algorithm", "level", "k"),
    [("grpo", "decision", 1), ("grpo", "decision", 3), ("grpo", "joint", 3), ("reinforce", "decision", 1)],
)
def test_learns(algorithm, level, k):
    assert train(algorithm=algorithm, level=level, k=k) >= 0.98


@pytest.mark.parametrize("defect", ["re-sampled actions", "flipped sign"])
def test_a_classic_defect_fails_the_same_check(defect):
    assert train(defect=defect) < 0.5
