import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import make_batch, make_data, make_task, section, shake
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn import functional as F

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext, Outcomes
from grpo_pipeline.tasks.attention.label_losses import LOG_ZERO, label_loss, symmetric_cross_entropy
from grpo_pipeline.tasks.attention.losses import (
    heatmap_outline_loss,
    location_loss,
    outline_loss,
    proportion_bce,
    supervised_counts,
    supervised_loss,
)
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.needle_losses import heatmap_entropy, mean_in_bag, multiple_instance_loss, needle_cross_entropy
from grpo_pipeline.tasks.attention.rewards import reward_components
from grpo_pipeline.tasks.attention.sample_choice import best_samples, last_samples, take_samples
from grpo_pipeline.tasks.attention.supervised_params import SupervisedParams
from grpo_pipeline.tasks.attention.task import AttentionTask

LOGIT_3 = math.log(3.0)  # p = 3/4


def outcomes(class_logits: list[list[float]], bag_probs: list[list[float]], *, grad: bool = False) -> Outcomes:
    logits, probs = (torch.tensor(values, requires_grad=grad) for values in (class_logits, bag_probs))
    return Outcomes(class_logits=logits, bag_probs=probs, mask_logits=torch.zeros(*logits.shape, 1, 1))


def batch(label: list[float], involvement: list[float], group: int) -> AttentionBatch:
    task = make_task()
    targets = {"label": torch.tensor(label), "involvement": torch.tensor(involvement)}
    return task.replicate(replace(make_batch(task, tuple(range(len(label)))), **targets), group)


def params(**changes: Any) -> SupervisedParams:
    ones = {"class_weight": 1.0, "heatmap_weight": 1.0, "glimpse_weight": 1.0}
    return SupervisedParams.model_validate(section("supervised_loss", **ones | changes))


def test_reward_parts_golden():
    parts = reward_components(
        batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0], [LOGIT_3, 0.0]], [[0.5, 0.25], [0.2, 0.0]])
    )
    # cancer: log 3/4, log 1/2; benign: log 1/4, log 1/2
    torch.testing.assert_close(parts["class"], torch.tensor([[3 / 4, 1 / 2], [1 / 4, 1 / 2]]).log())
    # (.5 log .5 + .5 log .5)/2, (.5 log .25 + .5 log .75)/2; log(1 - .2)/2, log(1 - 1e-4)/2 (clamped)
    expected = [[math.log(0.5) / 2, math.log(0.25 * 0.75) / 4], [math.log(0.8) / 2, math.log(1 - 1e-4) / 2]]
    torch.testing.assert_close(parts["heatmap"], torch.tensor(expected))
    parts = reward_components(batch([1.0], [0.5], 2), outcomes([[0.0, 1.0]], [[0.5, 0.5]], grad=True))
    assert [part.requires_grad for part in parts.values()] == [False, False]
    targets = bag_batch(2)  # an empty bag has no heatmap to reward
    parts = reward_components(targets, bag_outcomes(targets))
    assert parts["heatmap"][2].tolist() == [0.0, 0.0, 0.0]
    assert bool((parts["heatmap"][[0, 1, 3]] < 0).all())
    assert bool((parts["class"] < 0).all())


def test_proportion_bce_is_finite_at_the_ends():
    probs = torch.tensor([0.0, 1.0], requires_grad=True)
    loss = proportion_bce(probs, torch.tensor([1.0, 0.0]))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.full((2,), -math.log(1e-4)), atol=1e-2, rtol=0)  # 1 - 1e-4 in float32
    assert torch.isfinite(probs.grad).all()


def test_supervised_loss_golden():
    made = outcomes([[LOGIT_3, 0.0]], [[0.5, 0.25]])
    # class: (-log 3/4 - log 1/2) / 2; heatmap: involvement 0 clamped to 0.02
    class_loss = -(math.log(3 / 4) + math.log(1 / 2)) / 2
    heatmap = -((0.02 * math.log(0.5) + 0.98 * math.log(0.5)) + (0.02 * math.log(0.25) + 0.98 * math.log(0.75))) / 2
    chosen = params(class_weight=2.0, heatmap_weight=3.0)
    got = supervised_loss(batch([1.0], [0.0], 2), made, chosen, glimpse_involvement=None)
    assert float(got) == pytest.approx(2 * class_loss + 3 * heatmap, abs=1e-6)
    targets, made = batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0]] * 2, [[0.5, 0.25]] * 2)
    weighted = params(glimpse_weight=2.0)
    without, got = (
        supervised_loss(targets, made, weighted, glimpse_involvement=given) for given in (None, torch.tensor([0.25, 0.5]))
    )
    # (.5 log .25 + .5 log .75 + .02 log .5 + .98 log .5) / 2 cores; involvement 0 clamped to 0.02
    term = -(0.5 * math.log(0.25 * 0.75) + math.log(0.5)) / 2
    assert float(got - without) == pytest.approx(2 * term, abs=1e-6)
    made, chosen = outcomes([[0.0, 0.0]], [[0.0, 5e-5]]), params(class_weight=0.0)
    got = supervised_loss(batch([1.0], [1.0], 2), made, chosen, glimpse_involvement=None)
    assert float(got) == pytest.approx(-0.98 * math.log(1e-4) - 0.02 * math.log(1 - 1e-4), rel=1e-6)


@pytest.mark.parametrize(("weights", "silent"), [({"class_weight": 0.0}, "class_logits"), ({"heatmap_weight": 0.0}, "bag_probs")])
def test_weight_zero_gives_no_gradient(weights: dict[str, float], silent: str):
    made = outcomes([[LOGIT_3, 0.0]], [[0.6, 0.25]], grad=True)
    supervised_loss(batch([1.0], [0.5], 2), made, params(**weights), glimpse_involvement=None).backward()
    for name in ("class_logits", "bag_probs"):
        assert bool(getattr(made, name).grad.any()) == (name != silent)


def bag_batch(*empty: int, cores: int = 4, group: int = 3) -> AttentionBatch:
    """Cores with bags of different shapes; those named have none."""
    generator = torch.Generator().manual_seed(2)
    bag = torch.rand(cores, 6, 6, generator=generator) * (torch.rand(cores, 6, 6, generator=generator) < 0.5)
    bag[list(empty)] = 0.0
    made = batch([1.0, 0.0, 1.0, 0.0][:cores], [0.3, 0.0, 1.0, 0.1][:cores], group)
    return replace(made, bag=bag)


def bag_outcomes(targets: AttentionBatch) -> Outcomes:
    generator = torch.Generator().manual_seed(4)
    shape = targets.label.shape
    mask_logits = torch.randn(*shape, 6, 6, generator=generator).requires_grad_()
    class_logits = torch.randn(shape, generator=generator).requires_grad_()
    return Outcomes(class_logits=class_logits, bag_probs=mean_in_bag(mask_logits.sigmoid(), targets.bag), mask_logits=mask_logits)


EVERY_TERM = {"needle_weight": 0.5, "mil_weight": 2.0, "entropy_weight": 0.7, "class_form": "symmetric"}


def test_the_terms_add_up_with_their_weights():
    targets = bag_batch()
    made, chosen = bag_outcomes(targets), params(**EVERY_TERM, heatmap_weight=3.0, class_weight=0.2)
    z, bag, label = made.mask_logits, targets.bag, targets.label
    expected = (
        0.2 * symmetric_cross_entropy(made.class_logits, label).mean()
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
    expected = 2 * symmetric_cross_entropy(made.class_logits, targets.label).mean()
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, made.mask_logits)[0], torch.zeros_like(made.mask_logits))


P, G, SIDE = 3, 2, 5


@pytest.fixture
def made() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a bag of partly covered pixels (the last core's is empty) and labels 1, 0, 1."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(P, G, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag = torch.rand(P, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag[bag < 0.4] = 0.0
    bag[2] = 0.0
    return logits, bag, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def bce(z: float, y: float) -> float:
    return math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z))


def pixels(logits: Tensor, bag: Tensor, p: int, g: int) -> list[tuple[float, float]]:
    """Return (logit, coverage) of each pixel of the bag."""
    found = zip(logits[p, g].flatten().tolist(), bag[p].flatten().tolist(), strict=True)
    return [(z, w) for z, w in found if w > 0]


def test_needle_cross_entropy_equals_a_naive_loop(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    got = needle_cross_entropy(logits, bag, label, params(needle_positive_weight=3.0))
    for p, g in np.ndindex(2, G):
        inside, y = pixels(logits, bag, p, g), float(label[p, g])
        expected = sum(w * (3.0 if y else 1.0) * bce(z, y) for z, w in inside) / sum(w for _, w in inside)
        assert float(got[p, g]) == pytest.approx(expected, rel=1e-12)
    assert got[2].tolist() == [0.0, 0.0]
    chosen = params(needle_form="symmetric")
    pixel = symmetric_cross_entropy(logits, label[:, :, None, None].expand_as(logits))
    torch.testing.assert_close(needle_cross_entropy(logits, bag, label, chosen), mean_in_bag(pixel, bag))


def test_multiple_instances_equal_a_naive_loop(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    for share in (0.2, 0.5, 1.0, 1e-6):
        got = multiple_instance_loss(logits, bag, label, share)
        for p, g in np.ndindex(2, G):
            losses = sorted(bce(z, float(label[p, g])) for z, _ in pixels(logits, bag, p, g))
            kept = losses[: math.ceil(share * len(losses))]
            assert float(got[p, g]) == pytest.approx(sum(kept) / len(kept), rel=1e-12)
        assert got[2].tolist() == [0.0, 0.0]
    # 0.28 of 25 pixels is 7.000000000000001 in float64 and must keep 7, the zeros.
    logits = torch.where(torch.arange(25) < 7, -50.0, 1.0).reshape(1, 1, 5, 5).double()
    assert 0.28 * 25 > 7
    got = multiple_instance_loss(logits, torch.ones(1, 5, 5), torch.zeros(1, 1, dtype=torch.float64), 0.28)
    assert float(got) < 1e-9


def test_entropy_is_that_of_bernoulli_variables(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, _ = made
    torch.testing.assert_close(heatmap_entropy(logits, bag), mean_in_bag(Bernoulli(logits=logits).entropy(), bag))
    assert float(heatmap_entropy(torch.zeros(1, 1, 2, 2), torch.ones(1, 2, 2))) == pytest.approx(math.log(2))
    logits = torch.tensor([200.0, -200.0, 0.0, 1e4]).reshape(1, 1, 2, 2).requires_grad_()
    entropy = heatmap_entropy(logits, torch.ones(1, 2, 2))
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2) / 4)
    assert torch.isfinite(logits.grad).all()


def test_gradients_equal_finite_differences(made: tuple[Tensor, Tensor, Tensor]):
    logits, bag, label = made
    for loss in (
        lambda z: needle_cross_entropy(z, bag, label, params(needle_positive_weight=2.0)),
        lambda z: needle_cross_entropy(z, bag, label, params(needle_form="symmetric")),
        lambda z: multiple_instance_loss(z, bag, label, 0.3),
        lambda z: heatmap_entropy(z, bag),
    ):
        assert torch.autograd.gradcheck(loss, logits.clone().requires_grad_())


LOGITS = torch.tensor([-7.0, -0.5, 0.0, 0.3, 2.0, 9.0], dtype=torch.float64)


def two_class_loop(logits: Tensor, labels: list[int]) -> list[float]:
    """The paper's sums over two classes, one sample after the other; its softmax over (0, z) is our sigmoid."""
    losses = []
    for z, y in zip(logits.tolist(), labels, strict=True):
        p = torch.tensor([0.0, z], dtype=torch.float64).softmax(0).tolist()
        q = [1.0 - y, float(y)]
        log_q = [math.log(x) if x > 0 else LOG_ZERO for x in q]
        forward = -sum(q[k] * math.log(p[k]) for k in (0, 1))
        reverse = -sum(p[k] * log_q[k] for k in (0, 1))
        losses.append(forward + reverse)
    return losses


def test_equals_the_two_class_sums_of_the_paper():
    for labels in ([1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]):
        got = symmetric_cross_entropy(LOGITS, torch.tensor(labels, dtype=torch.float64))
        assert got.tolist() == pytest.approx(two_class_loop(LOGITS, labels), rel=1e-12)


def test_the_plain_form_is_torchs():
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    got, symmetric = (label_loss(LOGITS, labels, form) for form in ("cross_entropy", "symmetric"))
    assert torch.equal(got, F.binary_cross_entropy_with_logits(LOGITS, labels, reduction="none"))
    assert torch.equal(symmetric, symmetric_cross_entropy(LOGITS, labels))


def task_with(**supervised: Any) -> AttentionTask:
    return make_task(reward={"class_weight": 1.0, "heatmap_weight": 0.5, "diversity_weight": 3.0}, supervised=supervised)


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


def test_outline_loss_golden():
    # Two pixels, p = 3/4 and 1/2 against 1 and 0: BCE (-log 3/4 - log 1/2) / 2; Dice 2 * 3/4 / (5/4 + 1).
    z, outline = torch.tensor([[[[LOGIT_3, 0.0]]]]), torch.tensor([[[1.0, 0.0]]])
    expected = -(math.log(3 / 4) + math.log(1 / 2)) / 2 + 1 - 1.5 / 2.25
    torch.testing.assert_close(outline_loss(z, outline), torch.tensor([[expected]]))
    right = outline_loss(60 * (2 * outline[:, None] - 1), outline)
    torch.testing.assert_close(right, torch.zeros(1, 1), atol=1e-6, rtol=0)
    assert bool(torch.isfinite(outline_loss(-60 * torch.ones(1, 1, 2, 2), torch.zeros(1, 2, 2))).all())


def test_heatmap_against_outlines_equals_a_loop_over_pixels():
    """Inside the outline the label is asked, outside nothing; both count half, whatever their size."""
    generator = torch.Generator().manual_seed(8)
    z = torch.randn(3, 2, 5, 5, generator=generator)
    outline = torch.rand(3, 5, 5, generator=generator) * (torch.rand(3, 5, 5, generator=generator) < 0.4)
    outline[2] = 0.0
    label = torch.tensor([1.0, 0.0, 1.0])[:, None].expand(3, 2)
    found = heatmap_outline_loss(z, outline, label)
    for p in range(3):
        for g in range(2):
            sums, shares = [0.0, 0.0], [0.0, 0.0]
            for i in range(5):
                for j in range(5):
                    prob, share = torch.sigmoid(z[p, g, i, j]).item(), outline[p, i, j].item()
                    of_lesion = -math.log(prob if label[p, g] else 1 - prob)
                    for side, (weight, value) in enumerate([(share, of_lesion), (1 - share, -math.log(1 - prob))]):
                        sums[side] += weight * value
                        shares[side] += weight
            expected = sum(total / share for total, share in zip(sums, shares, strict=True) if share) / 2
            assert found[p, g].item() == pytest.approx(expected, rel=1e-5)


def test_cells_as_instances_do_not_see_a_pattern_that_every_cell_repeats():
    """The same quarter of each cell's pixels can say the label to pixels as instances; of cells the mean is asked."""
    targets = bag_batch(cores=2)
    pattern = torch.full((4, 4), -3.0)
    pattern[0] = 9.0  # the mean of a cell is 0
    made = replace(bag_outcomes(targets), mask_logits=pattern.repeat(3, 3)[None, None].expand(2, 3, 12, 12))
    targets = replace(targets, bag=torch.ones(2, 12, 12), label=torch.ones(2, 3))
    chosen = {"class_weight": 0.0, "heatmap_weight": 0.0, "mil_weight": 1.0, "mil_share": 0.25}
    of_pixels, of_cells = (
        float(supervised_loss(targets, made, params(**chosen, mil_on=on), glimpse_involvement=None)) for on in ("pixels", "cells")
    )
    assert of_pixels < 0.001
    assert of_cells == pytest.approx(math.log(2), rel=1e-6)
    # A bag that covers two of nine cells: a quarter of two is one, the cell that fits best.
    bag = torch.zeros(2, 12, 12)
    bag[:, 1, 2:6] = 0.5
    z = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    found = supervised_loss(
        replace(targets, bag=bag), replace(made, mask_logits=z), params(**chosen, mil_on="cells"), glimpse_involvement=None
    )
    means = torch.stack([z[..., :4, :4].mean((2, 3)), z[..., :4, 4:8].mean((2, 3))])
    torch.testing.assert_close(found, torch.nn.functional.softplus(-means).amin(0).mean())


def test_outlines_that_are_not_shown_are_no_members_of_the_mean():
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(4, 3, 6, 6, generator=generator).requires_grad_()
    outline = (torch.rand(4, 6, 6, generator=generator) < 0.3).float()
    outline[[0, 2]] = 0.0
    targets = replace(bag_batch(), outline=outline)
    made = replace(bag_outcomes(targets), segmentation_logits=drawn)
    chosen = params(class_weight=0.0, heatmap_weight=0.0, outline_weight=2.0, mask_share=1.0)
    loss = supervised_loss(targets, made, chosen, glimpse_involvement=None)
    loss.backward()
    torch.testing.assert_close(loss.detach(), 2 * outline_loss(drawn, outline)[[1, 3]].mean().detach())
    assert not bool(drawn.grad[[0, 2]].any())
    chosen = params(class_weight=0.0, heatmap_weight=0.0, heatmap_outline_weight=3.0, mask_share=1.0)
    made = bag_outcomes(targets)
    heat = supervised_loss(targets, made, chosen, glimpse_involvement=None)
    found = torch.autograd.grad(heat, made.mask_logits, retain_graph=True)[0]
    torch.testing.assert_close(heat, 3 * heatmap_outline_loss(made.mask_logits, outline, targets.label)[[1, 3]].mean())
    assert not bool(found[[0, 2]].any())
    shares = torch.tensor([0.5, 0.5, 0.25])
    torch.testing.assert_close(supervised_loss(targets, made, chosen, glimpse_involvement=None, shares=shares), heat / 4)
    assert supervised_counts(targets).tolist() == [4, 4, 2]
    assert supervised_counts(bag_batch()).tolist() == [4, 4]


def test_the_policy_is_told_the_outline_where_outlines_are_shown():
    task = make_task(patch_size=4)
    found = make_batch(task)
    place = torch.zeros_like(found.outline if found.outline is not None else found.bag)
    place[:, 8:12, 8:12] = 1.0  # the cell (2, 2) of the grid of 8
    logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    expected = -logits.masked_fill(~found.cells, -torch.inf).log_softmax(1)[:, 18]
    torch.testing.assert_close(location_loss(logits, replace(found, outline=place), 8), expected)
    assert not torch.allclose(location_loss(logits, found, 8), expected)


def test_proportion_bce_leaves_mixed_precision_where_cuda_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original, inside = F.binary_cross_entropy, []

    def noted(*args: Any, **options: Any) -> Tensor:
        inside.append(torch.is_autocast_enabled("cpu"))
        return original(*args, **options)

    monkeypatch.setattr(F, "binary_cross_entropy", noted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = proportion_bce(torch.tensor([0.25]), torch.tensor([0.5]))
    assert inside == [False]
    # -(log 0.25 + log 0.75) / 2
    assert float(found) == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)


def test_the_share_of_the_policy_s_place_is_that_of_outlines_or_of_bags():
    """With no share of the cores nothing but the place of the first point is left: B is its mean over those that have one."""
    plain = {"heatmap_weight": 0.0, "glimpse_weight": 0.0, "location_weight": 2.0}
    for given, shares, share in (({"mask_share": 1.0}, [0.0, 0.25, 0.5], 0.5), ({}, [0.0, 0.25], 0.25)):
        task = make_task(patch_size=4, supervised=plain | given)
        policy, batch = task.build_policy(0), task.make_batch(make_data(), np.array([2, 3, 5, 7]))
        shake(policy)
        context = task.encode(policy, batch)
        rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
        grouped = task.replicate(batch, 2)
        outcomes = task.decode(policy, context, rollouts, batch)
        found = task.supervised_loss(policy, context, grouped, outcomes, torch.tensor(shares))
        losses = location_loss(policy.propose(context)[0].cells, batch, task.grid)
        members = batch.bag.flatten(1).any(1) if batch.outline is None else batch.outline.flatten(1).any(1)
        assert members.tolist() == ([False, True, True, True] if given else [True] * 4)
        torch.testing.assert_close(found, 2 * share * losses[members].mean())


def test_a_cell_of_which_half_is_covered_is_the_place_else_the_one_covered_most():
    """Cells (1, 1) and (1, 2) of the grid of 8, of 16 pixels each, which are covered by 12 and 4, 4 and 2, or 8 and 8."""
    batch = make_batch(make_task(patch_size=4))
    logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    chances = logits.masked_fill(~batch.cells, -torch.inf).log_softmax(1)
    for first, second, expected in ((12, 4, [9]), (4, 2, [9]), (8, 8, [9, 10])):
        place = torch.zeros(4, 32, 32)
        for left, covered in ((4, first), (8, second)):
            place[:, 4:8, left : left + 4] = (torch.arange(16) < covered).reshape(4, 4).float()
        found = location_loss(logits, replace(batch, outline=place), 8)
        torch.testing.assert_close(found, -chances[:, expected].logsumexp(1))
