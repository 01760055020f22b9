"""Teach the class decoder the class."""

from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.losses.label_loss import label_loss
from grpo_pipeline.tasks.attention.losses.params import LabelForm
from grpo_pipeline.tasks.attention.model import class_scores


def class_loss(batch: AttentionBatch, outcomes: Outcomes, form: LabelForm) -> Tensor:
    """Return the loss of the class decoder's answers against the class, a scalar: the mean over all P*G samples.

    With cross-fitting each head learns from the folds that it does not judge: each is asked, and the mean counts its learners.
    """
    heads, learners = outcomes.heads, outcomes.learners
    if outcomes.class_scores is not None and batch.classes is not None:
        scores = outcomes.class_scores if heads is None else heads
        of_samples = class_scores.class_loss(scores, batch.classes, form)
    elif heads is None:
        of_samples = label_loss(outcomes.class_logits, batch.label, form)
    else:
        of_samples = label_loss(heads, batch.label[..., None].expand_as(heads), form)
    if learners is not None:
        of_samples = (of_samples * learners).sum(2)  # [P, G, heads] -> [P, G]
    return of_samples.mean()
