import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.label_loss import LOG_ZERO, label_loss, symmetric_cross_entropy

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
