"""Teach the prompted mask a shown outline."""

from torch import Tensor
from torch.nn import functional as F


def outline_loss(segmentation_logits: Tensor, outline: Tensor) -> Tensor:
    """Return cross-entropy plus soft Dice loss of the prompted mask against the outline, [P, G].

        mean over pixels of BCE(z, y) + 1 - 2 sum(p y) / (sum(p) + sum(y)),   p = sigmoid(z)

    Dice asks for overlap whatever the size of a lesion, cross-entropy has a gradient where a mask misses it. Source: Milletari
    et al. 2016, "V-Net", section 3; how this differs: no squares in the denominator, and cross-entropy beside it.

    Args:
        segmentation_logits: z, [P, G, H, W].
        outline: y, share of each pixel in the lesion, [P, H, W]; an empty one has the loss of an empty mask.
    """
    target = outline[:, None].expand_as(segmentation_logits)
    pixel_loss = F.binary_cross_entropy_with_logits(segmentation_logits, target, reduction="none")
    probs = segmentation_logits.sigmoid()
    both, sizes = (probs * target).sum((2, 3)), (probs + target).sum((2, 3))
    return pixel_loss.mean((2, 3)) + 1 - 2 * both / sizes.clamp(min=1e-6)
