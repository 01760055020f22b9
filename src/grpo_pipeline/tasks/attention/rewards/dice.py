"""Pay for a prompted mask that overlaps a shown outline."""

from torch import Tensor


def mask_dice(mask: Tensor, outline: Tensor) -> Tensor:
    """Return the Dice coefficient of masks and a shown outline, 2 |A and B| / (|A| + |B|), [P, G]; 0 where none is shown.

    Args:
        mask: bool [P, G, H, W].
        outline: share of each pixel in the lesion, [P, H, W]; all 0 where no outline is shown.
    """
    target, drawn = outline[:, None], mask.to(outline.dtype)
    sizes = drawn.sum((2, 3)) + target.sum((2, 3))
    return 2 * (drawn * target).sum((2, 3)) / sizes.clamp(min=1e-6)
