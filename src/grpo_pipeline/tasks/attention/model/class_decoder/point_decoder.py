"""Average what is seen at k points into the logit of their set."""

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_scores import ClassHead, class_head, n_outputs


class PointDecoder(nn.Module):
    """Average the evidence for cancer at k points into one logit per point set; ``weigh`` says what the evidence is.

    Where the model tells C classes without an order apart, evidence, prior and logits have a last axis of C more.
    Subclasses read what they look at: images, or a map of the cells.
    """

    def __init__(self, classes: Classes | None) -> None:
        super().__init__()
        self.outputs = n_outputs(classes)
        self.prior = nn.Parameter(torch.zeros(() if self.outputs == 1 else self.outputs))
        self.involvement_prior = nn.Parameter(torch.zeros(()))
        self.classes: ClassHead | None = class_head(classes)

    def weigh(self, view: Tensor, points: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence for cancer at each point, a logit: points [P, M, 2] -> [P, M], or [P, M, C]."""
        raise NotImplementedError

    def forward(self, view: Tensor, points: Tensor, is_point: Tensor | None = None) -> Tensor:
        """Return cancer logits [P, G], or class scores [P, G, C].

        Args:
            view: what ``weigh`` reads, P of them.
            points: [P, G, k, 2], (x, y) in [0, 1]; with k = 0 the learned prior answers.
            is_point: bool [P, G, k], False for padding, which is not pooled; None: all are points.
        """
        n_prompts, group_size, k, _ = points.shape
        if k == 0:
            return self.prior.expand(n_prompts, group_size, *self.prior.shape)
        evidence = self.weigh(view, points.flatten(1, 2))
        evidence = evidence.reshape(n_prompts, group_size, k, *self.prior.shape)
        if self.prior.ndim:
            evidence = evidence.movedim(-1, 2)  # [P, G, C, k]
            is_point = None if is_point is None else is_point[:, :, None]
        return pool_evidence(evidence, is_point) + self.prior

    def estimate_involvement(
        self, view: Tensor, points: Tensor, is_valid: Tensor, folds: Tensor | None = None
    ) -> Tensor:
        """Return the mean probability of cancer over points of the bag, [P].

        Args:
            view: what ``weigh`` reads, P of them.
            points: [P, M, 2], (x, y) in [0, 1].
            is_valid: bool [P, M], True where a point lies in the bag; at least one per row.
            folds: int64 [P], for a decoder with folds.
        """
        evidence = self.weigh(view, points, folds)
        if self.classes is not None:
            evidence = self.classes.log_odds(evidence)
        probs = (evidence + self.involvement_prior).sigmoid() * is_valid
        return probs.sum(1) / is_valid.sum(1).clamp(min=1)


def pool_evidence(evidence: Tensor, is_point: Tensor | None = None) -> Tensor:
    """Average per-point logits [..., k] into one logit [...].

    Where bool [..., k] ``is_point`` is False, the logit does not count; a set of none is 0, without gradient.
    """
    if is_point is None:
        return evidence.mean(-1)
    total = evidence.masked_fill(~is_point, 0.0).sum(-1)
    return total / is_point.sum(-1).clamp(min=1)
