import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_attention import make_batch, make_task, shake
from tiny_objectives import EVERY_TERM
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext, Outcomes
from grpo_pipeline.tasks.attention.losses.sample_choice import best_samples, last_samples, take_samples
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask


def task_with(**supervised: Any) -> AttentionTask:
    return make_task(
        reward={"class": {"weight": 1.0}, "heatmap": {"weight": 0.5}, "diversity": {"weight": 3.0}}, supervised=supervised
    )


Decoded = tuple[AttentionModel, AttentionBatch, AttentionContext, Rollouts, Outcomes]


def decoded(task: AttentionTask, proposal: Any = "policy") -> Decoded:
    policy = task.build_policy(0)
    shake(policy)
    batch = task.replicate(make_batch(task), 4)
    context, generator = task.encode(policy, batch), torch.Generator().manual_seed(0)
    sampled = task.sample(policy, context, 4, temperature=1.0, proposal=proposal, generator=generator)
    return policy, batch, context, sampled, task.decode(policy, context, sampled, batch)


def gradient(policy: AttentionModel, loss: Tensor) -> Tensor:
    parameters = [p for p in policy.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


def one_by_one(task: AttentionTask, made: Decoded, chosen: list[int]) -> Tensor:
    """Decode the chosen sample of every core alone and average over the cores."""
    policy, _, context, sampled, _ = made
    everything = task_with(**EVERY_TERM)
    losses = []
    for p, g in enumerate(chosen):
        alone = Rollouts(*(part[p : p + 1, g : g + 1] for part in vars(sampled).values()))
        core = AttentionContext(**{name: None if v is None else v[p : p + 1] for name, v in vars(context).items()})
        one = task.replicate(make_batch(task, (p,)), 1)
        losses.append(everything.supervised_loss(policy, core, one, everything.decode(policy, core, alone, one)))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("proposal", ["policy", "uniform"])
def test_best_trains_on_the_sample_with_the_highest_reward(proposal: str):
    task = task_with(samples="best", **EVERY_TERM)
    made = policy, batch, context, sampled, outcomes = decoded(task, proposal)
    parts, rates = task.reward(batch, sampled, outcomes)
    totals = [[sum(rates[n] * float(parts[n][p, g]) for n in parts) for g in range(4)] for p in range(4)]
    chosen = [row.index(max(row)) for row in totals]
    assert chosen != [max(range(4), key=lambda g, p=p: float(parts["class"][p, g])) for p in range(4)]  # not by one part alone
    loss, expected = task.supervised_loss(policy, context, batch, outcomes), one_by_one(task, made, chosen)
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-5)
    wrong = one_by_one(task, made, [(g + 1) % 4 for g in chosen])
    assert abs(float(wrong.detach() - expected.detach())) > 1e-3
    torch.testing.assert_close(gradient(policy, loss), gradient(policy, expected), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="outcomes must hold their rollouts for samples = best"):
        task.supervised_loss(policy, context, batch, replace(outcomes, rollouts=None))


def test_one_trains_on_the_last_sample_and_all_on_the_mean():
    last = task_with(samples="one", **EVERY_TERM)
    made = policy, batch, context, _, outcomes = decoded(last)
    got = last.supervised_loss(policy, context, batch, outcomes)
    torch.testing.assert_close(got, one_by_one(last, made, [3] * 4), atol=1e-6, rtol=1e-5)
    mean = torch.stack([one_by_one(last, made, [g] * 4) for g in range(4)]).mean()
    everything = task_with(**EVERY_TERM)
    assert everything.supervised.samples == "all"
    torch.testing.assert_close(everything.supervised_loss(policy, context, batch, outcomes), mean, atol=1e-6, rtol=1e-5)


def test_best_samples_are_scored_and_carry_no_gradient():
    total = torch.tensor([[0.0, 2.0, 1.0]], requires_grad=True)
    assert best_samples(total).tolist() == [1]
    assert not best_samples(total).requires_grad
    nan = math.nan
    assert best_samples(torch.tensor([[nan, -3.0, -2.0], [nan, nan, nan], [1.0, 1.0, 0.0]])).tolist() == [2, 0, 0]
    assert last_samples(torch.zeros(2, 5)).tolist() == [4, 4]


def test_taking_keeps_a_core_with_its_sample():
    task = make_task()
    _, batch, _, sampled, outcomes = decoded(task)
    few, taken = take_samples(batch, outcomes, torch.tensor([2, 0, 3, 1]))
    for p, g in enumerate([2, 0, 3, 1]):
        assert torch.equal(taken.mask_logits[p, 0], outcomes.mask_logits[p, g])
        assert torch.equal(taken.class_logits[p, 0], outcomes.class_logits[p, g])
        assert torch.equal(taken.rollouts.actions[p, 0], sampled.actions[p, g])
    assert few.label.shape == few.involvement.shape == taken.bag_probs.shape == (4, 1)
    assert torch.equal(few.bag, batch.bag)
