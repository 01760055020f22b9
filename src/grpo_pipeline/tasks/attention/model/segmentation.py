"""The prompted mask beside the heatmap: the pixels of the image that it is drawn with, and how well it meets an outline.

SAM draws its masks from a grid of cells alone, four pixels of the mask to a cell. A model that begins without published weights
learns edges from some hundred outlines only where it sees the image itself: a small U-Net, run once per image and shared by all
point sets, adds pixels to SAM's. After "HQ-SAM" (Ke et al. 2023, "Segment anything in high quality", section 3.2), which adds
early features of the encoder there; how this differs: they come from a network of its own, and each pixel is told how near the
points are, as in click-based segmentation (Sofiiuk et al. 2022, "Reviving iterative training", section 3.1). Through SAM's tokens
alone a mask learned to be the same whatever the points were.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.model.u_net import UNet

NEARNESS = (0.05, 0.1, 0.2)
"""Standard deviations of the Gaussians around a point, in shares of the image side."""


class PixelFeatures(UNet):
    """Turn images [P, 1, S, S] into features of the pixels [P, D, 4h, 4w] and of the cells [P, D, h, w] by a U-Net.

    It has four scales, from 4h down to h / 2, and a first convolution of stride 2 on 8h pixels.
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
        self.build_scales(width, widths)
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
        *_, of_cells, _, finest = self.describe(x)
        return finest, self.cells(of_cells)

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
