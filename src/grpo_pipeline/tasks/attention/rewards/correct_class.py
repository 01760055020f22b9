"""Pay for the right class."""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.model import class_scores


def class_component(batch: AttentionBatch, outcomes: Outcomes) -> Tensor:
    """Return log p(correct class), of all classes that there are, [P, G] in nats and detached; at most 0.

    Args:
        batch: with targets replicated to [P, G].
        outcomes: of the same samples.
    """
    if outcomes.class_scores is None or batch.classes is None:
        class_nll = F.binary_cross_entropy_with_logits(
            outcomes.class_logits, batch.label, reduction="none"
        )
    else:
        class_nll = class_scores.class_nll(outcomes.class_scores, batch.classes)
    return -class_nll.detach()
