import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses import label_loss, symmetric_cross_entropy
from grpo_pipeline.tasks.attention.params import SymmetricParams

LOGITS = torch.tensor([-7.0, -0.5, 0.0, 0.3, 2.0, 9.0], dtype=torch.float64)


def params(alpha: float = 1.0, beta: float = 1.0, log_zero: float = -4.0) -> SymmetricParams:
    return SymmetricParams(alpha=alpha, beta=beta, log_zero=log_zero)


def two_class_loop(logits: Tensor, labels: list[int], chosen: SymmetricParams) -> list[float]:
    """The paper's sums over two classes, one sample after the other; its softmax over (0, z) is our sigmoid."""
    losses = []
    for z, y in zip(logits.tolist(), labels, strict=True):
        p = torch.tensor([0.0, z], dtype=torch.float64).softmax(0).tolist()
        q = [1.0 - y, float(y)]
        log_q = [math.log(x) if x > 0 else chosen.log_zero for x in q]
        forward = -sum(q[k] * math.log(p[k]) for k in (0, 1))
        reverse = -sum(p[k] * log_q[k] for k in (0, 1))
        losses.append(chosen.alpha * forward + chosen.beta * reverse)
    return losses


@pytest.mark.parametrize("chosen", [params(), params(0.1, 2.0, -6.0), params(0.0, 1.0), params(1.0, 0.0)])
@pytest.mark.parametrize("labels", [[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
def test_equals_the_two_class_sums_of_the_paper(chosen: SymmetricParams, labels: list[int]):
    got = symmetric_cross_entropy(LOGITS, torch.tensor(labels, dtype=torch.float64), chosen)
    assert got.tolist() == pytest.approx(two_class_loop(LOGITS, labels, chosen), rel=1e-12)


def test_gradient_equals_finite_differences():
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    chosen = params(0.3, 1.7)
    assert torch.autograd.gradcheck(lambda z: symmetric_cross_entropy(z, labels, chosen), LOGITS.clone().requires_grad_())


def test_the_plain_form_is_torchs():
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    got = label_loss(LOGITS, labels, "cross_entropy", params(5.0, 5.0))
    assert torch.equal(got, F.binary_cross_entropy_with_logits(LOGITS, labels, reduction="none"))
    assert torch.equal(label_loss(LOGITS, labels, "symmetric", params()), symmetric_cross_entropy(LOGITS, labels, params()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [((0.0, 0.0, -4.0), r"alpha \+ beta must be positive"), ((1.0, 1.0, 0.0), "log_zero"), ((-1.0, 2.0, -4.0), "alpha")],
)
def test_wrong_parameters_are_refused(wrong: tuple[float, float, float], message: str):
    with pytest.raises(ValidationError, match=message):
        params(*wrong)
