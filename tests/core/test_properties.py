"""The properties that any batch must have, one after the other; each is shown to fail by a fault of tests/mutations/table.py."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surrogates import surrogate

from grpo_pipeline.core.credit import credit_decisions
from grpo_pipeline.core.diagnostics.ratio_statistics import ratio_statistics
from grpo_pipeline.core.policy_gradient.advantage_changes import apply_prompt_weights
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.ratios import importance_ratio
from grpo_pipeline.core.policy_gradient.value_loss import value_loss
from grpo_pipeline.core.rewards import apply_failure_rule, subtract_kl
from grpo_pipeline.core.sampling.dynamic import find_silent
from grpo_pipeline.core.training.replay_weights import importance_weights
from grpo_pipeline.core.types import Rewards

F64 = torch.float64
P, G, L, V = 4, 3, 5, 7
SEEDS = st.integers(0, 2**31)
some = settings(max_examples=8, derandomize=True)


def draw_batch(seed):
    """Log-probs now and at rollout time, advantages, and a mask in which the first row is wholly invalid."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(P, G, L, dtype=F64, generator=generator) - 2
    new = (old + 0.4 * torch.randn(P, G, L, dtype=F64, generator=generator)).requires_grad_()
    is_valid = torch.rand(P, G, L, generator=generator) < 0.6
    is_valid[0, 0], is_valid[-1, -1, 0] = False, True
    return new, old, torch.randn(P, G, dtype=F64, generator=generator), is_valid


def gradient(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("level", ["decision", "joint", "sequence"])
@given(seed=SEEDS, size=st.floats(1e-3, 1e3))
@some
def test_the_ratio_is_exactly_one_at_the_first_update(level, seed, size):
    new, _, advantages, is_valid = draw_batch(seed)
    new = new * size
    ratio = importance_ratio(new, new.detach(), is_valid, level=level)
    assert torch.equal(ratio, torch.ones_like(ratio))
    statistics = ratio_statistics(
        new, new.detach(), advantages, is_valid, surrogate("gspo" if level == "sequence" else "grpo", ratio_level=level)
    )
    assert [statistics[f"policy/{name}"] for name in ("ratio_mean", "ratio_max", "ess")] == [1.0, 1.0, 1.0]
    assert [statistics[name] for name in ("policy/clip_low", "policy/clip_high", "kl/rollout")] == [0.0, 0.0, 0.0]


@given(seed=SEEDS)
@some
def test_no_gradient_reaches_what_was_drawn(seed):
    new, old, advantages, is_valid = draw_batch(seed)
    drawn = [x.clone().requires_grad_() for x in (old, advantages, new.detach()[..., 0], old[..., 0])]
    old, advantages, returns, old_values = drawn
    losses = {
        "policy": policy_loss(new, old, advantages, is_valid),
        "value": value_loss(new[..., 0] + 0.5, returns, old_values, 0.2),
    }
    for loss in losses.values():
        assert torch.autograd.grad(loss, drawn, allow_unused=True, retain_graph=True) == (None,) * 4
        assert float(gradient(loss, new)[0].abs().max()) > 0


@given(seed=SEEDS)
@some
def test_rewards_and_advantages_carry_no_gradient(seed):
    new, old, total, is_valid = draw_batch(seed)
    old.requires_grad_()
    total.requires_grad_()
    values = total[:, 0].exp()
    advantages = compute_advantages(total, method="batch", values=values)
    made = {
        "advantages": advantages.values,
        "weighted": apply_prompt_weights(advantages, values).values,
        "failed": apply_failure_rule(total, is_valid[..., 0], rule="penalty", penalty=-1.0),
        "charged": subtract_kl(Rewards({}, total), new - old, is_valid, weight=0.1).total,
        "credited": credit_decisions(
            Rewards({}, total), total[..., None].expand_as(new), is_valid, credit="marginal"
        ).credits.values,
        "importance": importance_weights(new, old, is_valid, cap=None),
    }
    assert [name for name, tensor in made.items() if tensor.requires_grad] == []


@given(seed=SEEDS)
@some
def test_a_group_is_silent_where_all_of_its_advantages_are_zero(seed):
    generator = torch.Generator().manual_seed(seed)
    choices = torch.tensor([0.0, 1.0, torch.nan], dtype=F64)
    rewards = choices[torch.randint(3, (60, G), generator=generator)]
    is_zero = (compute_advantages(rewards, method="mean_only").values == 0).all(dim=1)
    assert torch.equal(find_silent(rewards), is_zero)
    assert 0 < int(is_zero.sum()) < 60
