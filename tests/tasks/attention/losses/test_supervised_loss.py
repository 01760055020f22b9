import math
from dataclasses import replace

import pytest
import torch
from tiny_objectives import EVERY_TERM, LOGIT_3, bag_batch, bag_outcomes, batch, outcomes, params

from grpo_pipeline.tasks.attention.batch import Outcomes
from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag
from grpo_pipeline.tasks.attention.losses.entropy import heatmap_entropy
from grpo_pipeline.tasks.attention.losses.heatmap import proportion_bce
from grpo_pipeline.tasks.attention.losses.heatmap_outline import heatmap_outline_loss
from grpo_pipeline.tasks.attention.losses.label_loss import symmetric_cross_entropy
from grpo_pipeline.tasks.attention.losses.mil import multiple_instance_loss
from grpo_pipeline.tasks.attention.losses.needle import needle_cross_entropy
from grpo_pipeline.tasks.attention.losses.outline import outline_loss
from grpo_pipeline.tasks.attention.losses.supervised_loss import supervised_counts, supervised_loss


def test_supervised_loss_golden():
    made = outcomes([[LOGIT_3, 0.0]], [[0.5, 0.25]])
    # class: (-log 3/4 - log 1/2) / 2; heatmap: involvement 0 clamped to 0.02
    class_loss = -(math.log(3 / 4) + math.log(1 / 2)) / 2
    heatmap = -((0.02 * math.log(0.5) + 0.98 * math.log(0.5)) + (0.02 * math.log(0.25) + 0.98 * math.log(0.75))) / 2
    chosen = params({"class": {"weight": 2.0}, "heatmap": {"weight": 3.0}})
    got = supervised_loss(batch([1.0], [0.0], 2), made, chosen, glimpse_involvement=None)
    assert float(got) == pytest.approx(2 * class_loss + 3 * heatmap, abs=1e-6)
    targets, made = batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0]] * 2, [[0.5, 0.25]] * 2)
    weighted = params({"glimpse": {"weight": 2.0}})
    without, got = (
        supervised_loss(targets, made, weighted, glimpse_involvement=given) for given in (None, torch.tensor([0.25, 0.5]))
    )
    # (.5 log .25 + .5 log .75 + .02 log .5 + .98 log .5) / 2 cores; involvement 0 clamped to 0.02
    term = -(0.5 * math.log(0.25 * 0.75) + math.log(0.5)) / 2
    assert float(got - without) == pytest.approx(2 * term, abs=1e-6)
    made, chosen = outcomes([[0.0, 0.0]], [[0.0, 5e-5]]), params({"class": None})
    got = supervised_loss(batch([1.0], [1.0], 2), made, chosen, glimpse_involvement=None)
    assert float(got) == pytest.approx(-0.98 * math.log(1e-4) - 0.02 * math.log(1 - 1e-4), rel=1e-6)


@pytest.mark.parametrize(("name", "silent"), [("class", "class_logits"), ("heatmap", "bag_probs")])
def test_a_term_that_is_not_named_is_not_asked(name: str, silent: str):
    made = outcomes([[LOGIT_3, 0.0]], [[0.6, 0.25]], grad=True)
    supervised_loss(batch([1.0], [0.5], 2), made, params({name: None}), glimpse_involvement=None).backward()
    for of in ("class_logits", "bag_probs"):
        gradient = getattr(made, of).grad
        assert (gradient is None) == (of == silent)
        assert gradient is None or bool(gradient.any())


def test_the_terms_add_up_with_their_weights():
    targets = bag_batch()
    made, chosen = bag_outcomes(targets), params(EVERY_TERM, {"heatmap": {"weight": 3.0}, "class": {"weight": 0.2}})
    z, bag, label = made.mask_logits, targets.bag, targets.label
    expected = (
        0.2 * symmetric_cross_entropy(made.class_logits, label).mean()
        + 3.0 * proportion_bce(made.bag_probs, targets.involvement.clamp(0.02, 0.98)).mean()
        + 0.5 * needle_cross_entropy(z, bag, label, chosen.needle).mean()
        + 2.0 * multiple_instance_loss(z, bag, label, chosen.mil.share).mean()
        + 0.7 * heatmap_entropy(z, bag).mean()
    )
    torch.testing.assert_close(supervised_loss(targets, made, chosen, glimpse_involvement=None), expected)


def test_a_core_with_an_empty_bag_takes_part_with_its_class_alone():
    """Values and gradients of the other cores equal those of the batch without it; its own heatmap learns nothing."""
    targets = bag_batch(1)
    made, chosen, others = bag_outcomes(targets), params(EVERY_TERM, {"class": None}), [0, 2, 3]
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
    asked = supervised_loss(targets, made, params(EVERY_TERM, {"class": {"weight": 1.0}}), glimpse_involvement=glimpse.detach())
    class_gradient = torch.autograd.grad(asked, made.class_logits)[0]
    assert float(class_gradient[1].abs().min()) > 0


def test_without_any_bag_the_class_alone_is_left():
    targets = bag_batch(0, 1, 2, 3)
    made = bag_outcomes(targets)
    loss = supervised_loss(targets, made, params(EVERY_TERM, {"class": {"weight": 2.0}}), glimpse_involvement=torch.zeros(4))
    expected = 2 * symmetric_cross_entropy(made.class_logits, targets.label).mean()
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, made.mask_logits)[0], torch.zeros_like(made.mask_logits))


def test_outlines_that_are_not_shown_are_no_members_of_the_mean():
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(4, 3, 6, 6, generator=generator).requires_grad_()
    outline = (torch.rand(4, 6, 6, generator=generator) < 0.3).float()
    outline[[0, 2]] = 0.0
    targets = replace(bag_batch(), outline=outline)
    made = replace(bag_outcomes(targets), segmentation_logits=drawn)
    chosen = params({"class": None, "heatmap": None, "outline": {"weight": 2.0}, "mask_share": 1.0})
    loss = supervised_loss(targets, made, chosen, glimpse_involvement=None)
    loss.backward()
    torch.testing.assert_close(loss.detach(), 2 * outline_loss(drawn, outline)[[1, 3]].mean().detach())
    assert not bool(drawn.grad[[0, 2]].any())
    chosen = params({"class": None, "heatmap": None, "heatmap_outline": {"weight": 3.0}, "mask_share": 1.0})
    made = bag_outcomes(targets)
    heat = supervised_loss(targets, made, chosen, glimpse_involvement=None)
    found = torch.autograd.grad(heat, made.mask_logits, retain_graph=True)[0]
    torch.testing.assert_close(heat, 3 * heatmap_outline_loss(made.mask_logits, outline, targets.label)[[1, 3]].mean())
    assert not bool(found[[0, 2]].any())
    shares = torch.tensor([0.5, 0.5, 0.25])
    torch.testing.assert_close(supervised_loss(targets, made, chosen, glimpse_involvement=None, shares=shares), heat / 4)
    assert supervised_counts(targets).tolist() == [4, 4, 2]
    assert supervised_counts(bag_batch()).tolist() == [4, 4]
