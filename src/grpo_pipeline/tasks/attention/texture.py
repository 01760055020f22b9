"""A learned filter bank and its local energies: how texture is described here, for a patch and for every cell.

The logarithm of the mean squared response of a few small filters (Laws 1980, "Rapid texture identification"; how this
differs: the filters are learned). A transformer of linear patch embeddings finds such second-order statistics only slowly.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Keeps the logarithm and its gradient finite in padding, where every filter answers 0.
FLOOR = 1e-3


class FilterBank(nn.Module):
    """Describe texture by the log energies of ``channels`` learned 5 x 5 filters and the mean level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, channels, kernel_size=5, padding=2, bias=False)

    def describe_patches(self, patches: Tensor) -> Tensor:
        """Return one description per patch, [M, 1, s, s] -> [M, channels + 1]; nothing outside the patch is read."""
        responses = F.conv2d(patches, self.filters.weight)
        level = patches.mean(dim=(2, 3))
        return torch.cat([(responses.square().mean(dim=(2, 3)) + FLOOR).log(), level], dim=1)

    def describe_cells(self, images: Tensor, grid: int) -> Tensor:
        """Return one description per cell, over the 3 x 3 cells around it: [P, 1, S, S] -> [P, channels + 1, grid, grid]."""
        cell = images.shape[-1] // grid
        channels = torch.cat([self.filters(images).square(), images], dim=1)
        means = F.avg_pool2d(channels, 3 * cell, stride=cell, padding=cell, count_include_pad=False)
        return torch.cat([(means[:, :-1] + FLOOR).log(), means[:, -1:]], dim=1)
