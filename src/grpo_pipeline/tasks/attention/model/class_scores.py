"""Scores of more than two classes: from a class decoder's outputs, to the log-odds of the positive classes, losses and rewards.

Class scores [..., C] are logits: their softmax is the probability of each class. Without an order the decoder has one output per
class, and these are the scores. Grades have one output s for all of them, and the scores come from it and C - 1 thresholds
(proportional odds; McCullagh 1980, "Regression models for ordinal data"). Of findings an image may have several, or none: each
score is a logit of its own, the sigmoid of which is the probability of that finding, and given the image they are independent.
The classes stand in the order as written.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.losses.label_loss import LOG_ZERO
from grpo_pipeline.tasks.attention.losses.params import LabelForm

LEAST_GAP = 1e-3
"""Between two thresholds: the probability of a grade stays above 0, and its logarithm finite."""


class ClassHead(nn.Module):
    """Read a class decoder's outputs [..., C] as class scores: classes without an order."""

    is_positive: Tensor

    def __init__(self, classes: Classes) -> None:
        super().__init__()
        # Of the model's description, not of its weights.
        positive = torch.tensor(classes.is_positive)
        self.register_buffer("is_positive", positive, persistent=False)

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the class scores, [..., C] -> [..., C]."""
        return outputs

    def log_odds(self, outputs: Tensor) -> Tensor:
        """Return the logit of P(class among the positive ones), [..., C] -> [...].

        log sum_{c positive} exp(z_c) - log sum_{c not} exp(z_c)
        """
        positive = outputs.masked_fill(~self.is_positive, -torch.inf).logsumexp(-1)
        return positive - outputs.masked_fill(self.is_positive, -torch.inf).logsumexp(-1)


class GradeHead(ClassHead):
    """Read one output s [...] of a class decoder as the scores of C grades.

        P(grade > c) = sigmoid(s - t_c),   t_0 < t_1 < ... < t_{C-2}

    The threshold below the lowest positive grade is 0, so that s itself is the log-odds of the positive grades; the others are
    that far away as the learned gaps say, 1 at the start.
    """

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        n = len(classes.names)
        self.anchor = n - len(classes.positive) - 1
        self.gaps = nn.Parameter(torch.full((n - 2,), float(np.log(np.expm1(1.0)))))

    def thresholds(self) -> Tensor:
        """Return t, increasing, [C - 1]."""
        distances = F.softplus(self.gaps) + LEAST_GAP
        from_lowest = torch.cat([distances.new_zeros(1), distances.cumsum(0)])
        return from_lowest - from_lowest[self.anchor]

    def forward(self, outputs: Tensor) -> Tensor:
        """Return log P(grade), [...] -> [..., C].

        log(sigmoid(a) - sigmoid(b)) = log sigmoid(a) + log sigmoid(-b) + log(1 - e^(b - a)),   a = s - t_{c-1}, b = s - t_c

        without cancellation; the lowest grade has no a and the highest no b.
        """
        thresholds = self.thresholds()
        above = outputs[..., None] - thresholds  # [..., C - 1]
        between = torch.log(-torch.expm1(thresholds[:-1] - thresholds[1:]))  # [C - 2]
        return (F.pad(F.logsigmoid(above), (1, 0)) + F.pad(F.logsigmoid(-above), (0, 1))) + F.pad(
            between, (1, 1)
        )

    def log_odds(self, outputs: Tensor) -> Tensor:
        """Return the logit of P(grade among the positive ones): the output itself."""
        return outputs


class FindingsHead(ClassHead):
    """Read a class decoder's outputs [..., C] as one logit per finding."""

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        self.positive = [c for c, is_positive in enumerate(classes.is_positive) if is_positive]

    def log_odds(self, outputs: Tensor) -> Tensor:
        """Return the logit of P(any of the positive findings), [..., C] -> [...].

            1 - prod_{c positive} (1 - p_c);   the odds of a or b are those of a, of b, and their product: o_a + o_b + o_a o_b

        in logarithms, without cancellation at any probability. Of one positive finding it is its own logit.
        """
        first, *others = (outputs.unbind(-1)[c] for c in self.positive)
        for other in others:
            first = torch.logaddexp(torch.logaddexp(first, other), first + other)
        return first


def class_head(classes: Classes | None) -> ClassHead | None:
    """Return what reads a class decoder's outputs as scores of classes; None where they are the logit of a label."""
    if classes is None:
        return None
    if classes.several:
        return FindingsHead(classes)
    return GradeHead(classes) if classes.ordinal else ClassHead(classes)


def n_outputs(classes: Classes | None) -> int:
    """Return how many numbers a class decoder says of a point set: one, or one per class or finding where they have no order."""
    return 1 if classes is None or classes.ordinal else len(classes.names)


def class_nll(scores: Tensor, classes: Tensor) -> Tensor:
    """Return -log P(right class), or -log P(right set of findings), in nats.

    The set's is the sum over all C findings of -log P(there, or not there, as it is): as large as that of C labels.

    Args:
        scores: [P, ..., C].
        classes: number of the class, int64 [P], or which findings are there, bool [P, C].

    Returns:
        [P, ...].
    """
    return _nll_terms(scores, classes).sum(-1)


def _nll_terms(scores: Tensor, classes: Tensor) -> Tensor:
    """Return -log P of each answer that is asked for, [P, ..., 1] of one class and [P, ..., C] of findings."""
    if classes.ndim == 1:
        right = classes.reshape(-1, *[1] * (scores.ndim - 1)).expand(*scores.shape[:-1], 1)
        return -scores.log_softmax(-1).gather(-1, right)
    is_there = classes.reshape(len(classes), *[1] * (scores.ndim - 2), -1)
    target = is_there.expand_as(scores).to(scores.dtype)
    return F.binary_cross_entropy_with_logits(scores, target, reduction="none")


def class_loss(scores: Tensor, classes: Tensor, form: LabelForm) -> Tensor:
    """Return the loss of class scores against the right class, in nats.

        cross_entropy: CE = -log p_y;   symmetric: CE + RCE,   RCE = -sum_c p_c log q_c = -A (1 - p_y)

    with q the right class alone and log 0 = A (``LOG_ZERO``). Source: Wang et al. 2019, arXiv 1908.06112, equations 4 to 6. Of
    findings it is the sum of what each loses as a label of its own.

    Args:
        scores: [P, ..., C].
        classes: as in ``class_nll``.
        form: of the loss.

    Returns:
        [P, ...].
    """
    if form == "cross_entropy":
        return class_nll(scores, classes)
    nll = _nll_terms(scores, classes)
    wrong = -torch.expm1(-nll)
    return (nll - LOG_ZERO * wrong).sum(-1)


def class_columns(classes: Classes | None) -> tuple[str, ...]:
    """Return the columns of a prediction: ``prob_<class>`` of each class, and of grades their mean; none of a label."""
    if classes is None:
        return ()
    return (
        *(f"prob_{name}" for name in classes.names),
        *(("expected_class",) if classes.ordinal else ()),
    )


def class_probs(scores: Tensor, classes: Classes) -> dict[str, np.ndarray]:
    """Return the values of ``class_columns``, float64 [P] each: scores [P, C]."""
    logits = scores.double()
    probs = (logits.sigmoid() if classes.several else logits.softmax(-1)).cpu().numpy()
    mean = probs @ np.arange(probs.shape[1])
    return dict(zip(class_columns(classes), (*probs.T, mean), strict=False))
