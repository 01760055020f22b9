"""Compute the cross-entropy of a binary label, plain or symmetric, elementwise and from logits."""

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.params import LabelForm

LOG_ZERO = -4.0
"""What stands for log 0 in the reverse cross-entropy."""


def label_loss(logits: Tensor, label: Tensor, form: LabelForm) -> Tensor:
    """Return the loss of each logit against its label, in nats.

    Args:
        logits: [...].
        label: the same shape, 0 or 1.
        form: ``cross_entropy``, or ``symmetric`` for :func:`symmetric_cross_entropy`.
    """
    if form == "symmetric":
        return symmetric_cross_entropy(logits, label)
    return F.binary_cross_entropy_with_logits(logits, label, reduction="none")


def symmetric_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Return cross-entropy plus reverse cross-entropy, which a wrong label can pull less far.

        CE + RCE,   CE = -[y log p + (1 - y) log(1 - p)],   RCE = -[p log y + (1 - p) log(1 - y)]

    with p = sigmoid(logit) and log 0 = A (``LOG_ZERO``), a negative number. For y in {0, 1} this is RCE = -A |y - p|, whose
    gradient vanishes where the model contradicts the label with confidence. Source: Wang et al. 2019, arXiv 1908.06112,
    equations 4 to 6; how this differs: two classes by one logit, both terms with weight 1.

    Args:
        logits: [...].
        label: the same shape, in [0, 1].
    """
    probs = logits.sigmoid()
    log_one, log_zero = (torch.log(y).clamp(min=LOG_ZERO) for y in (label, 1 - label))
    reverse = -(probs * log_one + (1 - probs) * log_zero)
    return F.binary_cross_entropy_with_logits(logits, label, reduction="none") + reverse
