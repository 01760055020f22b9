"""Describe texture by the local energies of a learned filter bank, for a patch and for every cell.

The logarithm of the mean squared response of a few small filters (Laws 1980, "Rapid texture identification"; how this
differs: the filters are learned). A transformer of linear patch embeddings finds such second-order statistics only slowly.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region

# Keeps the logarithm and its gradient finite in padding, where every filter answers 0.
FLOOR = 1e-3


class FilterBank(nn.Module):
    """Describe texture by the spectrum of ``channels`` learned 5 x 5 filters, its mean, and the grey level.

    The filters start with mean 0 and norm 1, so that they see contrast and not brightness; the log energies are normalised
    over the filters (LayerNorm), which leaves the shape of the spectrum, and their mean is kept beside it. Raw energies have
    a large common offset, from which a class decoder learned several times more slowly.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, channels, kernel_size=5, padding=2, bias=False)
        self.norm = nn.LayerNorm(channels)
        with torch.no_grad():
            centred = self.filters.weight - self.filters.weight.mean(dim=(2, 3), keepdim=True)
            self.filters.weight.copy_(F.normalize(centred.flatten(1), dim=1).reshape(centred.shape))

    @property
    def width(self) -> int:
        """Number of values in a description: the channels, their mean, and the level."""
        return self.filters.out_channels + 2

    def describe_patches(self, patches: Tensor) -> Tensor:
        """Return one description per patch, [M, 1, s, s] -> [M, width]; nothing outside the patch is read."""
        energy = F.conv2d(patches, self.filters.weight).square().mean(dim=(2, 3))
        return self._describe(energy, patches.mean(dim=(2, 3)))

    def describe_cells(self, images: Tensor, grid: int) -> Tensor:
        """Return one description per cell, over the 3 x 3 cells around it: [P, 1, S, S] -> [P, width, grid, grid]."""
        cell = images.shape[-1] // grid
        # The filters take the mean out of a patch: in bfloat16 what is left of a bright one would be rounding.
        with exact_region(images):
            energy, level = (
                _mean_around(self.filters(images).square(), cell),
                _mean_around(images, cell),
            )
            return self._describe(energy.movedim(1, -1), level.movedim(1, -1)).movedim(-1, 1)

    def _describe(self, energy: Tensor, level: Tensor) -> Tensor:
        """Return energies [..., channels] and level [..., 1] as one description [..., width]."""
        log_energy = (energy + FLOOR).log()
        # + 1 centres the mean log energy of an image of variance 1.
        return torch.cat(
            [self.norm(log_energy), log_energy.mean(-1, keepdim=True) + 1, level], dim=-1
        )


def _mean_around(values: Tensor, cell: int) -> Tensor:
    """Return the mean over the 3 x 3 cells around each cell; outside the image nothing counts."""
    return F.avg_pool2d(F.avg_pool2d(values, cell), 3, stride=1, padding=1, count_include_pad=False)
