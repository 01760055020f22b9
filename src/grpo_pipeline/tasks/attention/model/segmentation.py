"""The prompted mask beside the heatmap: the pixels of the image that it is drawn with, and how well it meets an outline.

SAM draws its masks from a grid of cells alone, four pixels of the mask to a cell. A model that begins without published weights
learns edges from some hundred outlines only where it sees the image itself: a small U-Net, run once per image and shared by all
point sets, adds pixels to SAM's. After "HQ-SAM" (Ke et al. 2023, "Segment anything in high quality", section 3.2), which adds
early features of the encoder there; how this differs: they come from a network of its own, and each pixel is told how near the
points are, as in click-based segmentation (Sofiiuk et al. 2022, "Reviving iterative training", section 3.1). Through SAM's tokens
alone a mask learned to be the same whatever the points were.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NEARNESS = (0.05, 0.1, 0.2)
"""Standard deviations of the Gaussians around a point, in shares of the image side."""


class PixelFeatures(nn.Module):
    """Turn images [P, 1, S, S] into features of the pixels [P, D, 4h, 4w] and of the cells [P, D, h, w] by a U-Net.

    Source: Ronneberger et al. 2015, "U-Net" (arXiv 1505.04597). How this differs: four scales from 4h down to h / 2, sums in the
    place of concatenations, GroupNorm, and a first convolution of stride 2 on 8h pixels.
    """

    def __init__(self, width: int, channels: int, grid: int) -> None:
        """Build the network.

        Args:
            width: D, channels of the finest scale; 2 D, 4 D and 4 D follow.
            channels: C, of the pixels that SAM draws a mask with.
            grid: side h of the cell grid.
        """
        super().__init__()
        self.grid = grid
        widths = (width, 2 * width, 4 * width, 4 * width)
        self.stem = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.down = nn.ModuleList(
            nn.Sequential(_block(before, after), _block(after, after))
            for before, after in zip((width, *widths), widths, strict=False)
        )
        self.across = nn.ModuleList(nn.Conv2d(below, above, 1) for above, below in pairwise(widths))
        self.up = nn.ModuleList(_block(above, above) for above in widths[:-1])
        self.cells = nn.Conv2d(widths[2], width, 1)
        self.near = nn.Linear(len(NEARNESS), width)
        self.pixels = nn.Linear(width, channels + 1)
        self.heat = nn.Conv2d(width, 1, 1)
        # So that mask and heatmap start as SAM's own.
        for parameter in (*self.pixels.parameters(), *self.heat.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of the pixels [P, D, 4h, 4w] and of the cells [P, D, h, w]."""
        x = self.stem(F.adaptive_avg_pool2d(images, 8 * self.grid))  # [P, D, 4h, 4w]
        scales = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2, ceil_mode=True))
            scales.append(x)
        cells = x
        for number in reversed(range(len(self.up))):
            above = scales[number]
            x = F.interpolate(self.across[number](x), size=above.shape[-2:], mode="bilinear")
            x = self.up[number](x + above)
            if above.shape[-1] == self.grid:
                cells = self.cells(x)
        return x, cells

    def prompted(self, features: Tensor, points: Tensor, is_point: Tensor | None) -> Tensor:
        """Return what each set's mask is drawn with beside SAM: C channels of its pixels, and a logit: [P, G, C + 1, 4h, 4w].

            W relu(f + V n) + b,   n_s = max over points of exp(-|x - point|^2 / (2 s^2)) for each s of NEARNESS

        Args:
            features: f, [P, D, 4h, 4w].
            points: [P, G, k, 2], (x, y) in [0, 1]; k may be 0.
            is_point: bool [P, G, k], False for padding; None: all are points.
        """
        near = nearness(points, is_point, features.shape[-1])  # [P, G, 3, 4h, 4w]
        told = torch.einsum("pgshw,ds->pgdhw", near, self.near.weight)
        hidden = (features[:, None] + told + self.near.bias[:, None, None]).relu()
        drawn = torch.einsum("pgdhw,cd->pgchw", hidden, self.pixels.weight)
        return drawn + self.pixels.bias[:, None, None]


def nearness(points: Tensor, is_point: Tensor | None, side: int) -> Tensor:
    """Return how near each pixel's centre is to the nearest point, 1 at it and 0 far away or without any: [P, G, 3, side, side].

    Args:
        points: [P, G, k, 2], (x, y) in [0, 1].
        is_point: bool [P, G, k], False for padding; None: all are points.
        side: pixels of a side.
    """
    if points.shape[2] == 0:
        return points.new_zeros(*points.shape[:2], len(NEARNESS), side, side)
    nearest = square_distance(points, is_point, side)
    return torch.stack([(-nearest / (2 * scale**2)).exp() for scale in NEARNESS], dim=2)


def square_distance(points: Tensor, is_point: Tensor | None, side: int) -> Tensor:
    """Return the squared distance of each pixel's centre to the nearest point, [P, G, side, side]; infinite without any.

    Args:
        points: [P, G, k, 2], (x, y) in [0, 1]; k at least 1.
        is_point: bool [P, G, k], False for padding; None: all are points.
        side: pixels of a side.
    """
    centres = (torch.arange(side, device=points.device, dtype=points.dtype) + 0.5) / side
    across, down = (points[..., None] - centres).square().unbind(3)  # [P, G, k, side] each
    square = down[..., :, None] + across[..., None, :]  # [P, G, k, side, side]
    if is_point is not None:
        square = square.masked_fill(~is_point[..., None, None], torch.inf)
    return square.amin(2)


def _block(inputs: int, outputs: int) -> nn.Module:
    # GroupNorm, not BatchNorm: the same numbers in rollout and update, in train and eval mode.
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
    )
