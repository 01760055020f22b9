"""The properties that any batch must have, one after the other; each is shown to fail by a fault of tests/mutations/table.py."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.core.diagnostics.statistics import ratio_statistics
from grpo_pipeline.core.policy_gradient.advantages import apply_prompt_weights, compute_advantages
from grpo_pipeline.core.policy_gradient.algorithms import LossOptions
from grpo_pipeline.core.policy_gradient.denominators import all_reduce_counts, count
from grpo_pipeline.core.policy_gradient.kl import kl_loss, rollout_kl_loss
from grpo_pipeline.core.policy_gradient.losses import importance_ratio, loss_denominator, policy_loss, value_loss
from grpo_pipeline.core.rewards import apply_failure_rule, subtract_kl
from grpo_pipeline.core.sampling.dynamic import find_silent
from grpo_pipeline.core.sampling.plackett_luce import categorical_entropy, gumbel_top_k, plackett_luce_logprobs
from grpo_pipeline.core.training.replay import importance_weights
from grpo_pipeline.core.types import Rewards

F64 = torch.float64
P, G, L, V = 4, 3, 5, 7
SEEDS = st.integers(0, 2**31)
REDUCTIONS = ("per_sequence", "per_decision", "constant")
NAMES = [
    *product(("ppo",), ("decision", "joint"), REDUCTIONS),
    ("cispo", "decision", "per_decision"),
    ("sapo", "decision", "per_sequence"),
    *product(("gspo",), ("sequence",), ("per_sequence", "per_decision")),
]
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


def close(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("algorithm", "level", "reduction"), NAMES)
@given(seed=SEEDS)
@some
def test_packed_equals_padded(algorithm, level, reduction, seed):
    new, old, advantages, is_valid = draw_batch(seed)
    options = LossOptions(max_decisions=L) if reduction == "constant" and level == "decision" else LossOptions()
    names = {"algorithm": algorithm, "ratio_level": level, "reduction": reduction, "options": options}
    counted = is_valid.any(-1, keepdim=True) if level == "joint" else is_valid
    step = loss_denominator(counted, reduction, options.max_decisions)
    junk = torch.full_like(new, -1e3)
    padded = policy_loss(torch.where(is_valid, new, junk), torch.where(is_valid, old, -junk), advantages, is_valid, **names)
    packed = 0.0
    for p, g in is_valid.any(-1).nonzero().tolist():
        kept = is_valid[p, g]
        row = [x[p, g][kept][None, None] for x in (new, old)]
        packed += policy_loss(*row, advantages[p, g][None, None], kept[kept][None, None], denominator=step, **names)
    close(padded, packed)
    close(*(gradient(loss, new)[0] for loss in (padded, packed)))


@pytest.mark.parametrize("level", ["decision", "joint", "sequence"])
@given(seed=SEEDS, size=st.floats(1e-3, 1e3))
@some
def test_the_ratio_is_exactly_one_at_the_first_update(level, seed, size):
    new, _, advantages, is_valid = draw_batch(seed)
    new = new * size
    ratio = importance_ratio(new, new.detach(), is_valid, level=level)
    assert torch.equal(ratio, torch.ones_like(ratio))
    statistics = ratio_statistics(new, new.detach(), advantages, is_valid, ratio_level=level)
    assert [statistics[f"policy/{name}"] for name in ("ratio_mean", "ratio_max", "ess")] == [1.0, 1.0, 1.0]
    assert [statistics[name] for name in ("policy/clip_low", "policy/clip_high", "kl/rollout")] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("algorithm", "level", "reduction"), NAMES)
@given(seed=SEEDS)
@some
def test_the_on_policy_gradient_is_that_of_reinforce(algorithm, level, reduction, seed):
    new, _, advantages, is_valid = draw_batch(seed)
    names = {"algorithm": algorithm, "ratio_level": level, "reduction": reduction}
    (got,) = gradient(policy_loss(new, new.detach(), advantages, is_valid, **names), new)
    # d/dl of -A * l for a decision, of -A * sum(l) for a joint one; of -A * mean(l) for each decision of a sequence.
    share = is_valid.double()
    if reduction == "per_sequence" and level != "joint":
        share = share / is_valid.sum(-1, keepdim=True).clamp(min=1)
    rows, units = P * G, int(is_valid.any(-1).sum() if level == "joint" else is_valid.sum())
    total = {"per_sequence": rows, "per_decision": units, "constant": rows * (1 if level == "joint" else L)}[reduction]
    close(got, -advantages[..., None] * share / total)


@pytest.mark.parametrize(("algorithm", "level", "reduction"), [name for name in NAMES if name[0] != "cispo"])
@given(seed=SEEDS)
@settings(max_examples=2, derandomize=True)
def test_gradients_of_the_hybrid_loss_agree_with_finite_differences(algorithm, level, reduction, seed):
    # (cispo holds the weights of its gradient still, so that it is not the gradient of its value.)
    _, _, advantages, is_valid = draw_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(P, V, dtype=F64, generator=generator, requires_grad=True)
    allowed = torch.arange(V) < torch.tensor([[V], [V - 1], [L], [V]])
    actions = gumbel_top_k(logits, L, G, generator=generator, is_allowed=allowed)
    old = plackett_luce_logprobs(logits.detach() + 0.1, actions, is_allowed=allowed) - 0.05
    returns = torch.randn(P, dtype=F64, generator=generator)

    def loss(z):
        new = plackett_luce_logprobs(z, actions, temperature=0.8, is_allowed=allowed)
        ratio = importance_ratio(new, old, is_valid, level=level)
        policy = policy_loss(new, old, advantages, is_valid, algorithm=algorithm, ratio_level=level, reduction=reduction)
        kl = kl_loss(new, old - 0.3, is_valid, estimator="ratio_k3", ratio=ratio)
        return policy + 0.3 * kl - 0.1 * categorical_entropy(z, allowed).mean() + 0.5 * value_loss(z[:, 0], returns)

    assert torch.autograd.gradcheck(loss, logits)


@given(seed=SEEDS)
@some
def test_no_gradient_reaches_what_was_drawn(seed):
    new, old, advantages, is_valid = draw_batch(seed)
    drawn = [x.clone().requires_grad_() for x in (old, advantages, new.detach()[..., 0], old[..., 0])]
    old, advantages, returns, old_values = drawn
    losses = {
        "policy": policy_loss(new, old, advantages, is_valid, algorithm="grpo"),
        "kl/rollout": rollout_kl_loss(new, old, is_valid),
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


@pytest.mark.parametrize(("how", "denominator"), [("sum", 1.0), ("mean", 0.5)])
def test_a_term_that_one_prompt_of_two_processes_counts_weighs_the_same(how, denominator, monkeypatch):
    # The sum over both processes is 1 already here; averaged gradients halve it, and so must the denominator.
    for name, value in (("is_available", True), ("is_initialized", True), ("all_reduce", None), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value, **__: value)
    counted = count(torch.ones(1, 1, 1, dtype=torch.bool), ratio_level="decision", reduction="per_decision")
    assert float(all_reduce_counts(counted, gradient_reduction=how).policy) == denominator
