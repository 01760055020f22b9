"""The figures of the self-check: sound objectives reach them, each defect misses them for its own reason."""

import torch

from grpo_pipeline.core.diagnostics import bandit
from grpo_pipeline.core.diagnostics.bandit import Bandit
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages

GRPO, REINFORCE = bandit.surrogate("grpo"), bandit.surrogate("reinforce")


def example(seed=0, copies=2):
    """A policy that has moved a little since its rollouts."""
    generator = torch.Generator().manual_seed(seed)
    policy = Bandit(bandit.shuffled_logits(spread=2.0, generator=generator))
    rollouts = bandit.draw(policy, generator=generator, copies=copies)
    with torch.no_grad():
        policy.logits += 0.05 * torch.randn(policy.logits.shape, dtype=torch.float64, generator=generator)
    return policy, rollouts, compute_advantages(bandit.rewards(rollouts)).values


def gradient(objective, seed=0):
    policy, rollouts, advantages = example(seed)
    objective(policy, rollouts, advantages, torch.Generator().manual_seed(9)).backward()
    return policy.logits.grad


def test_each_defect_changes_the_objective_in_its_own_way():
    policy, rollouts, advantages = example()
    generator = torch.Generator().manual_seed(9)
    again = bandit.draw(policy, generator=torch.Generator().manual_seed(9), copies=2)
    resampled = bandit.resampled(GRPO)(policy, rollouts, advantages, generator)
    assert torch.equal(resampled, GRPO(policy, again, advantages, generator))
    # A sign turns min into max, so that only the on-policy part is the exact opposite: compare under reinforce.
    assert torch.allclose(gradient(bandit.flipped(REINFORCE)), -gradient(REINFORCE), rtol=0, atol=1e-15)
    moved = torch.cat([advantages[-2:], advantages[:-2]])
    misplaced = bandit.misplaced(GRPO)(policy, rollouts, advantages, generator)
    assert torch.equal(misplaced, GRPO(policy, rollouts, moved, generator))


def test_a_figure_without_a_gradient_is_no_pass():
    assert bandit.bonus_gradient_cosine(lambda policy, rollouts: 0.0 * policy.logits.sum(), seed=0) == 0.0
