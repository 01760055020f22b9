"""Describe an image at several scales: the way down and up again of a U-Net.

Source: Ronneberger et al. 2015, "U-Net" (arXiv 1505.04597). How this differs: sums in the place of concatenations, and GroupNorm.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class UNet(nn.Module):
    """The blocks of a U-Net; a subclass says when they are built, so that its weights are drawn in its own order."""

    down: nn.ModuleList
    across: nn.ModuleList
    up: nn.ModuleList

    def build_scales(self, inputs: int, widths: Sequence[int]) -> None:
        """Build the blocks from maps of ``inputs`` channels to scales of ``widths`` channels, each half as fine as the last."""
        self.down = nn.ModuleList(
            nn.Sequential(convolution(before, after), convolution(after, after))
            for before, after in zip((inputs, *widths), widths, strict=False)
        )
        self.across = nn.ModuleList(nn.Conv2d(below, above, 1) for above, below in pairwise(widths))
        self.up = nn.ModuleList(convolution(above, above) for above in widths[:-1])

    def describe(self, x: Tensor) -> list[Tensor]:
        """Return the map of each scale on the way up, the deepest first: x [P, inputs, H, W], the last [P, widths[0], H, W]."""
        scales: list[Tensor] = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2, ceil_mode=True))
            scales.append(x)
        rising = [x]
        for number in reversed(range(len(self.up))):
            above = scales[number]
            x = F.interpolate(self.across[number](x), size=above.shape[-2:], mode="bilinear")
            x = self.up[number](x + above)
            rising.append(x)
        return rising


def convolution(inputs: int, outputs: int) -> nn.Module:
    """Build a 3 x 3 convolution with its norm: GroupNorm, so that rollout and update see the same numbers (ratio 1)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
    )
