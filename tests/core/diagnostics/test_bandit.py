"""A bandit with a known answer: its exact figures, and that the functions of core, put together, learn it k cells at a time."""

import pytest
import torch

from grpo_pipeline.core.diagnostics import bandit
from grpo_pipeline.core.diagnostics.bandit import CELLS, GOOD, GROUP, PROMPTS, Bandit


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_cell_is_good_for_exactly_one_prompt():
    good = bandit.good_cells()
    assert good.shape == (PROMPTS, CELLS)
    assert good.sum(dim=1).tolist() == [GOOD] * PROMPTS
    assert good.sum(dim=0).tolist() == [1] * CELLS
    assert good[2].nonzero().flatten().tolist() == list(range(16, 24))


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
