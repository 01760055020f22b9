"""Batches with bags, what decoders say of them, and sections of the supervised loss, for tests of rewards and losses."""

import math
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from tiny_attention import make_batch, make_task, merge, section
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams

LOGIT_3 = math.log(3.0)  # p = 3/4


EVERY_TERM = {
    "needle": {"weight": 0.5},
    "mil": {"weight": 2.0, "share": 0.2},
    "entropy": {"weight": 0.7},
    "class": {"form": "symmetric"},
}


def outcomes(class_logits: list[list[float]], bag_probs: list[list[float]], *, grad: bool = False) -> Outcomes:
    logits, probs = (torch.tensor(values, requires_grad=grad) for values in (class_logits, bag_probs))
    return Outcomes(class_logits=logits, bag_probs=probs, mask_logits=torch.zeros(*logits.shape, 1, 1))


def batch(label: list[float], involvement: list[float], group: int) -> AttentionBatch:
    task = make_task()
    targets = {"label": torch.tensor(label), "involvement": torch.tensor(involvement)}
    return task.replicate(replace(make_batch(task, tuple(range(len(label)))), **targets), group)


def params(*changes: dict[str, Any]) -> SupervisedParams:
    ones = {"class": {"weight": 1.0}, "heatmap": {"weight": 1.0}, "glimpse": {"weight": 1.0}}
    return SupervisedParams.model_validate(section("supervised_loss", **reduce(merge, changes, ones)))


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


def bce(z: float, y: float) -> float:
    return math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z))


def pixels(logits: Tensor, bag: Tensor, p: int, g: int) -> list[tuple[float, float]]:
    """Return (logit, coverage) of each pixel of the bag."""
    found = zip(logits[p, g].flatten().tolist(), bag[p].flatten().tolist(), strict=True)
    return [(z, w) for z, w in found if w > 0]


def rollouts(actions: Tensor, is_valid: Tensor | None = None) -> Rollouts:
    valid = torch.ones(actions.shape, dtype=torch.bool) if is_valid is None else is_valid
    return Rollouts(actions, torch.zeros(actions.shape), valid)
