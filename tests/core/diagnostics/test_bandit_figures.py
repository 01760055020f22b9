"""The figures of the self-check: sound objectives reach them, each defect misses them for its own reason."""

import torch

from grpo_pipeline.core.diagnostics import bandit
from grpo_pipeline.core.diagnostics.bandit import Bandit
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages

GRPO, REINFORCE = bandit.surrogate("grpo"), bandit.surrogate("reinforce")


def test_each_defect_changes_the_objective_in_its_own_way():
    generator = torch.Generator().manual_seed(0)
    policy = Bandit(bandit.shuffled_logits(spread=2.0, generator=generator))
    rollouts = bandit.draw(policy, generator=generator, copies=2)
    with torch.no_grad():  # the policy has moved a little since its rollouts
        policy.logits += 0.05 * torch.randn(policy.logits.shape, dtype=torch.float64, generator=generator)
    advantages = compute_advantages(bandit.rewards(rollouts)).values

    def loss(objective, rollouts=rollouts, advantages=advantages):
        return objective(policy, rollouts, advantages, torch.Generator().manual_seed(9))

    again = bandit.draw(policy, generator=torch.Generator().manual_seed(9), copies=2)
    assert torch.equal(loss(bandit.resampled(GRPO)), loss(GRPO, rollouts=again))
    assert torch.equal(loss(bandit.misplaced(GRPO)), loss(GRPO, advantages=torch.cat([advantages[-2:], advantages[:-2]])))
    # A sign turns min into max, so that only the on-policy part is the exact opposite: compare under reinforce.
    flipped, sound = (torch.autograd.grad(loss(x), policy.logits)[0] for x in (bandit.flipped(REINFORCE), REINFORCE))
    assert torch.allclose(flipped, -sound, rtol=0, atol=1e-15)
    # A figure without a gradient is no pass.
    assert bandit.bonus_gradient_cosine(lambda policy, rollouts: 0.0 * policy.logits.sum(), seed=0) == 0.0
