"""Ask for a clear heatmap along the needle."""

from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.bags import mean_in_bag


def heatmap_entropy(mask_logits: Tensor, bag: Tensor) -> Tensor:
    """Return the mean binary entropy of the heatmap's pixels in the bag, 0 to log 2; as a loss it asks for clear summaries.

        mean over the bag of -p log p - (1 - p) log(1 - p) = p * softplus(-z) + (1 - p) * softplus(z),   p = sigmoid(z)

    Args:
        mask_logits: [P, G, H, W].
        bag: [P, H, W].

    Returns:
        [P, G].
    """
    probs = mask_logits.sigmoid()
    return mean_in_bag(
        probs * F.softplus(-mask_logits) + (1 - probs) * F.softplus(mask_logits), bag
    )
