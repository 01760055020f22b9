"""Pay for a heatmap that has the right share of cancer in the bag."""

from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.losses.bags import has_bag
from grpo_pipeline.tasks.attention.losses.heatmap import proportion_bce


def heatmap_component(batch: AttentionBatch, outcomes: Outcomes) -> Tensor:
    """Return -BCE(mean heatmap probability in the bag, involvement) / 2, [P, G] in nats and detached; at most 0.

    It is 0 for a core with an empty bag.

    Args:
        batch: with targets replicated to [P, G].
        outcomes: of the same samples.
    """
    nll = proportion_bce(outcomes.bag_probs, batch.involvement)
    return -nll.detach().where(has_bag(batch)[:, None], 0.0) / 2
