import math
from dataclasses import replace

import pytest
import torch
from tiny_attention import make_batch, make_task
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.model_params import SupervisedParams
from grpo_pipeline.tasks.attention.objectives import proportion_bce, reward_parts, supervised_loss

LOGIT_3 = math.log(3.0)  # p = 3/4


def outcomes(class_logits: list[list[float]], bag_probs: list[list[float]], *, grad: bool = False) -> Outcomes:
    logits, probs = (torch.tensor(values, requires_grad=grad) for values in (class_logits, bag_probs))
    return Outcomes(class_logits=logits, bag_probs=probs, mask_logits=torch.zeros(*logits.shape, 1, 1))


def batch(label: list[float], involvement: list[float], group: int) -> AttentionBatch:
    task = make_task()
    targets = {"label": torch.tensor(label), "involvement": torch.tensor(involvement)}
    return task.replicate(replace(make_batch(task, tuple(range(len(label)))), **targets), group)


def params(**changes: float) -> SupervisedParams:
    ones = {"class_weight": 1.0, "heatmap_weight": 1.0, "glimpse_weight": 1.0, "involvement_clamp": 0.0}
    return SupervisedParams(glimpse_bag_cells=4, **ones | changes)


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


def test_reward_does_not_change_with_another_core():
    targets = batch([1.0, 0.0], [0.5, 0.2], 2)
    a = reward_parts(targets, outcomes([[0.3, 0.1], [1.0, 2.0]], [[0.5, 0.4], [0.3, 0.2]]))
    b = reward_parts(targets, outcomes([[0.3, 0.1], [-5.0, 7.0]], [[0.5, 0.4], [0.9, 0.1]]))
    for name in a:
        assert torch.equal(a[name][0], b[name][0])
        assert not torch.equal(a[name][1], b[name][1])


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


def grads(tensor: Tensor) -> list[float]:
    return tensor.grad.flatten().tolist()
