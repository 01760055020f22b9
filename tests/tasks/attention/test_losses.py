import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_attention import make_batch, make_task, section
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.losses import (
    heatmap_entropy,
    mean_in_bag,
    multiple_instance_loss,
    needle_cross_entropy,
    proportion_bce,
    reward_parts,
    supervised_loss,
    symmetric_cross_entropy,
)
from grpo_pipeline.tasks.attention.params import SupervisedParams

LOGIT_3 = math.log(3.0)  # p = 3/4


def outcomes(class_logits: list[list[float]], bag_probs: list[list[float]], *, grad: bool = False) -> Outcomes:
    logits, probs = (torch.tensor(values, requires_grad=grad) for values in (class_logits, bag_probs))
    return Outcomes(class_logits=logits, bag_probs=probs, mask_logits=torch.zeros(*logits.shape, 1, 1))


def batch(label: list[float], involvement: list[float], group: int) -> AttentionBatch:
    task = make_task()
    targets = {"label": torch.tensor(label), "involvement": torch.tensor(involvement)}
    return task.replicate(replace(make_batch(task, tuple(range(len(label)))), **targets), group)


def params(**changes: Any) -> SupervisedParams:
    ones = {"class_weight": 1.0, "heatmap_weight": 1.0, "glimpse_weight": 1.0, "involvement_clamp": 0.0}
    return SupervisedParams.model_validate(section("supervised_loss", **ones | changes))


def test_reward_parts_golden():
    parts = reward_parts(batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0], [LOGIT_3, 0.0]], [[0.5, 0.25], [0.2, 0.0]]))
    # cancer: log 3/4, log 1/2; benign: log 1/4, log 1/2
    torch.testing.assert_close(parts["class"], torch.tensor([[3 / 4, 1 / 2], [1 / 4, 1 / 2]]).log())
    # (.5 log .5 + .5 log .5)/2, (.5 log .25 + .5 log .75)/2; log(1 - .2)/2, log(1 - 1e-4)/2 (clamped)
    expected = [[math.log(0.5) / 2, math.log(0.25 * 0.75) / 4], [math.log(0.8) / 2, math.log(1 - 1e-4) / 2]]
    torch.testing.assert_close(parts["heatmap"], torch.tensor(expected))


def test_rewards_are_detached():
    parts = reward_parts(batch([1.0], [0.5], 2), outcomes([[0.0, 1.0]], [[0.5, 0.5]], grad=True))
    assert [part.requires_grad for part in parts.values()] == [False, False]


def test_proportion_bce_is_finite_at_the_ends():
    probs = torch.tensor([0.0, 1.0], requires_grad=True)
    loss = proportion_bce(probs, torch.tensor([1.0, 0.0]))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.full((2,), -math.log(1e-4)), atol=1e-2, rtol=0)  # 1 - 1e-4 in float32
    assert torch.isfinite(probs.grad).all()


def test_supervised_loss_golden():
    made = outcomes([[LOGIT_3, 0.0]], [[0.5, 0.25]])
    # class: (-log 3/4 - log 1/2) / 2; heatmap: involvement 0 clamped to 0.1
    class_loss = -(math.log(3 / 4) + math.log(1 / 2)) / 2
    heatmap = -((0.1 * math.log(0.5) + 0.9 * math.log(0.5)) + (0.1 * math.log(0.25) + 0.9 * math.log(0.75))) / 2
    got = supervised_loss(
        batch([1.0], [0.0], 2),
        made,
        params(class_weight=2.0, heatmap_weight=3.0, involvement_clamp=0.1),
        glimpse_involvement=None,
    )
    assert float(got) == pytest.approx(2 * class_loss + 3 * heatmap, abs=1e-6)


def test_supervised_gradient_golden():
    made = outcomes([[LOGIT_3, 0.0]], [[0.5, 0.25]], grad=True)
    supervised_loss(batch([1.0], [0.5], 2), made, params(), glimpse_involvement=None).backward()
    # d BCE / d logit = (p - y) / 2 samples; d BCE / d p = (p - y) / (p (1 - p)) / 2 samples
    assert grads(made.class_logits) == pytest.approx([(0.75 - 1) / 2, (0.5 - 1) / 2], abs=1e-6)
    assert grads(made.bag_probs) == pytest.approx([0.0, (0.25 - 0.5) / (0.25 * 0.75) / 2], abs=1e-5)


def test_glimpse_term_golden():
    targets, made = batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0]] * 2, [[0.5, 0.25]] * 2)
    weighted = params(glimpse_weight=2.0, involvement_clamp=0.1)
    without = supervised_loss(targets, made, weighted, glimpse_involvement=None)
    got = supervised_loss(targets, made, weighted, glimpse_involvement=torch.tensor([0.25, 0.5]))
    # (.5 log .25 + .5 log .75 + .1 log .5 + .9 log .5) / 2 cores; involvement 0 clamped to 0.1
    term = -(0.5 * math.log(0.25 * 0.75) + math.log(0.5)) / 2
    assert float(got - without) == pytest.approx(2 * term, abs=1e-6)


@pytest.mark.parametrize(("weights", "silent"), [({"class_weight": 0.0}, "class_logits"), ({"heatmap_weight": 0.0}, "bag_probs")])
def test_weight_zero_gives_no_gradient(weights: dict[str, float], silent: str):
    made = outcomes([[LOGIT_3, 0.0]], [[0.6, 0.25]], grad=True)
    supervised_loss(batch([1.0], [0.5], 2), made, params(**weights), glimpse_involvement=None).backward()
    for name in ("class_logits", "bag_probs"):
        assert any(grads(getattr(made, name))) == (name != silent)


def bag_batch(*empty: int, cores: int = 4, group: int = 3) -> AttentionBatch:
    """Cores with bags of different shapes; those named have none."""
    generator = torch.Generator().manual_seed(2)
    bag = torch.rand(cores, 6, 6, generator=generator) * (torch.rand(cores, 6, 6, generator=generator) < 0.5)
    bag[list(empty)] = 0.0
    made = batch([1.0, 0.0, 1.0, 0.0][:cores], [0.3, 0.0, 0.8, 0.1][:cores], group)
    return replace(made, bag=bag)


def bag_outcomes(targets: AttentionBatch) -> Outcomes:
    generator = torch.Generator().manual_seed(4)
    shape = targets.label.shape
    mask_logits = torch.randn(*shape, 6, 6, generator=generator).requires_grad_()
    class_logits = torch.randn(shape, generator=generator).requires_grad_()
    return Outcomes(class_logits=class_logits, bag_probs=mean_in_bag(mask_logits.sigmoid(), targets.bag), mask_logits=mask_logits)


EVERY_TERM = {
    "needle_weight": 0.5,
    "mil_weight": 2.0,
    "entropy_weight": 0.7,
    "class_form": "symmetric",
    "involvement_clamp": 0.02,
}


def test_the_terms_add_up_with_their_weights():
    targets = bag_batch()
    made, chosen = bag_outcomes(targets), params(**EVERY_TERM, heatmap_weight=3.0, class_weight=0.2)
    z, bag, label = made.mask_logits, targets.bag, targets.label
    expected = (
        0.2 * symmetric_cross_entropy(made.class_logits, label, chosen.symmetric).mean()
        + 3.0 * proportion_bce(made.bag_probs, targets.involvement.clamp(0.02, 0.98)).mean()
        + 0.5 * needle_cross_entropy(z, bag, label, chosen).mean()
        + 2.0 * multiple_instance_loss(z, bag, label, chosen.mil_share).mean()
        + 0.7 * heatmap_entropy(z, bag).mean()
    )
    torch.testing.assert_close(supervised_loss(targets, made, chosen, glimpse_involvement=None), expected)


def test_a_core_with_an_empty_bag_takes_part_with_its_class_alone():
    """Values and gradients of the other cores equal those of the batch without it; its own heatmap learns nothing."""
    targets = bag_batch(1)
    made, chosen, others = bag_outcomes(targets), params(**EVERY_TERM, class_weight=0.0), [0, 2, 3]
    glimpse = torch.tensor([0.3, 0.0, 0.6, 0.9], requires_grad=True)
    loss = supervised_loss(targets, made, chosen, glimpse_involvement=glimpse)
    found = torch.autograd.grad(loss, [made.mask_logits, glimpse])
    rest = replace(targets, **{name: getattr(targets, name)[others] for name in ("bag", "label", "involvement")})
    z = made.mask_logits.detach()[others].requires_grad_()
    without = Outcomes(made.class_logits[others], mean_in_bag(z.sigmoid(), rest.bag), z)
    alone = glimpse.detach()[others].requires_grad_()
    expected = supervised_loss(rest, without, chosen, glimpse_involvement=alone)
    wanted = torch.autograd.grad(expected, [z, alone])
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got[others], want, atol=1e-7, rtol=1e-5)
        assert float(got[1].abs().max()) == 0.0
        assert torch.isfinite(got).all()
    asked = supervised_loss(targets, made, params(**EVERY_TERM, class_weight=1.0), glimpse_involvement=glimpse.detach())
    class_gradient = torch.autograd.grad(asked, made.class_logits)[0]
    assert float(class_gradient[1].abs().min()) > 0


def test_without_any_bag_the_class_alone_is_left():
    targets = bag_batch(0, 1, 2, 3)
    made = bag_outcomes(targets)
    loss = supervised_loss(targets, made, params(**EVERY_TERM, class_weight=2.0), glimpse_involvement=torch.zeros(4))
    expected = 2 * symmetric_cross_entropy(made.class_logits, targets.label, params().symmetric).mean()
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, made.mask_logits)[0], torch.zeros_like(made.mask_logits))


def test_the_heatmap_reward_of_an_empty_bag_is_0():
    targets = bag_batch(2)
    parts = reward_parts(targets, bag_outcomes(targets))
    assert parts["heatmap"][2].tolist() == [0.0, 0.0, 0.0]
    assert bool((parts["heatmap"][[0, 1, 3]] < 0).all())
    assert bool((parts["class"] < 0).all())


def test_the_clamp_of_the_loss_is_a_parameter():
    made = outcomes([[0.0, 0.0]], [[0.0, 0.05]])
    got = supervised_loss(batch([1.0], [1.0], 2), made, params(class_weight=0.0, prob_clamp=0.1), glimpse_involvement=None)
    assert float(got) == pytest.approx(-math.log(0.1), abs=1e-6)


def grads(tensor: Tensor) -> list[float]:
    return tensor.grad.flatten().tolist()
