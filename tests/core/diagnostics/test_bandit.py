"""A bandit with a known answer: its exact figures, and that the functions of core, put together, learn it k cells at a time."""

import math

import pytest
import torch

from grpo_pipeline.core.diagnostics import bandit
from grpo_pipeline.core.diagnostics.bandit import CELLS, GOOD, GROUP, PROMPTS, Bandit
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.losses import policy_loss
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k, plackett_luce_logprobs
from grpo_pipeline.core.training.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.training.state import TrainState


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_cell_is_good_for_exactly_one_prompt():
    good = bandit.good_cells()
    assert good.shape == (PROMPTS, CELLS)
    assert good.sum(dim=1).tolist() == [GOOD] * PROMPTS
    assert good.sum(dim=0).tolist() == [1] * CELLS
    assert good[2].nonzero().flatten().tolist() == list(range(16, 24))


def test_the_uniform_policy_hits_one_time_in_eight():
    assert float(bandit.hit_rate(bandit.equal_logits())) == pytest.approx(GOOD / CELLS, abs=1e-15)
    assert float(bandit.entropy(bandit.equal_logits())) == pytest.approx(math.log(CELLS), abs=1e-12)


def test_all_prompts_of_shuffled_logits_have_one_hit_rate():
    logits = bandit.shuffled_logits(spread=2.0, generator=generator())
    hits = (logits.softmax(dim=-1) * bandit.good_cells()).sum(dim=1)
    assert torch.allclose(hits, hits[0].expand(PROMPTS), rtol=0, atol=1e-15)
    assert sorted(logits[3].tolist()) == torch.linspace(-2, 2, CELLS, dtype=torch.float64).tolist()
    assert not torch.equal(logits, bandit.shuffled_logits(spread=2.0, generator=generator(1)))


@pytest.mark.parametrize("value", [bandit.hit_rate, bandit.entropy])
def test_the_enumerated_gradient_agrees_with_finite_differences(value):
    logits, step = bandit.shuffled_logits(spread=2.0, generator=generator()), 1e-6
    gradient = bandit.enumerated_gradient(value, logits)
    for p, v in [(0, 3), (0, 40), (5, 41), (7, 0)]:
        nudge = torch.zeros_like(logits)
        nudge[p, v] = step
        slope = float(value(logits + nudge) - value(logits - nudge)) / (2 * step)
        assert float(gradient[p, v]) == pytest.approx(slope, abs=1e-9)
    assert float(gradient.norm()) > 1e-3


def test_a_draw_stores_what_it_drew_and_how_likely_it_was():
    policy = Bandit(bandit.shuffled_logits(spread=2.0, generator=generator()))
    rollouts = bandit.draw(policy, generator=generator(), copies=3)
    assert rollouts.actions.shape == rollouts.logprobs.shape == (PROMPTS * 3, GROUP, 1)
    assert not rollouts.logprobs.requires_grad
    assert bool(rollouts.is_valid.all())
    log_p, reward = policy.logits.detach().log_softmax(dim=-1), bandit.rewards(rollouts)
    for row, g in [(0, 0), (2, 3), (3, 1), (23, 2)]:
        prompt, cell = row // 3, int(rollouts.actions[row, g, 0])
        assert float(rollouts.logprobs[row, g, 0]) == pytest.approx(float(log_p[prompt, cell]), abs=1e-12)
        assert float(reward[row, g]) == float(prompt * GOOD <= cell < (prompt + 1) * GOOD)
    scored = bandit.score(policy, rollouts)
    assert scored.requires_grad
    assert torch.equal(scored.detach(), rollouts.logprobs)


def test_the_share_of_hits_agrees_with_the_exact_one():
    policy = Bandit(bandit.shuffled_logits(spread=2.0, generator=generator()))
    hits = bandit.rewards(bandit.draw(policy, generator=generator(), copies=256))
    exact = float(bandit.hit_rate(policy.logits.detach()))
    # 8192 samples: five standard errors.
    assert float(hits.mean()) == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / hits.numel()))


def train_with_k_cells(*, k, level, defect=None, steps=400):
    """Train on sets of k cells drawn without replacement, four updates per batch; return the exact hit rate of the first."""
    policy = Bandit(bandit.equal_logits())
    state = TrainState(policy, build_optimizer({"policy": (list(policy.parameters()), 0.1)}), None, 0, 0, 0)
    allowed = torch.ones(PROMPTS, CELLS, dtype=torch.bool)
    good = bandit.good_cells()[:, None].expand(PROMPTS, GROUP, CELLS)
    for step in range(steps):
        stream = step_generator(0, step)
        actions = gumbel_top_k(policy(), k, GROUP, generator=stream, is_allowed=allowed)
        old = plackett_luce_logprobs(policy(), actions, is_allowed=allowed).detach()
        advantages = compute_advantages(good.gather(2, actions).double().mean(dim=-1)).values
        for _ in range(4):
            if defect == "re-sampled actions":
                actions = gumbel_top_k(policy(), k, GROUP, generator=stream, is_allowed=allowed)
                old = plackett_luce_logprobs(policy(), actions, is_allowed=allowed).detach()
            logprobs = plackett_luce_logprobs(policy(), actions, is_allowed=allowed)
            is_valid = torch.ones_like(actions, dtype=torch.bool)
            loss = policy_loss(logprobs, old, advantages, is_valid, algorithm="grpo", ratio_level=level)
            state, _ = apply_update(state, loss, max_grad_norm=1.0)
        state = advance(state)
        if (reached := float(bandit.hit_rate(policy.logits.detach()))) >= 0.98:
            break
    return reached


@pytest.mark.parametrize(("level", "k"), [("decision", 1), ("decision", 3), ("joint", 3)])
def test_sets_of_cells_are_learned(level, k):
    assert train_with_k_cells(k=k, level=level) >= 0.98


def test_sets_that_are_drawn_again_are_not_learned():
    assert train_with_k_cells(k=3, level="joint", defect="re-sampled actions", steps=100) < 0.5
