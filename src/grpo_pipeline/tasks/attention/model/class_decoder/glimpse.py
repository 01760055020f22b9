"""``class_decoder.kind: glimpse``: a small patch of the image around each point."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_decoder.params import GlimpseParams
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import PointDecoder
from grpo_pipeline.tasks.attention.model.filter_bank import FilterBank


class GlimpseDecoder(PointDecoder):
    """Read nothing but a patch of ``size`` pixels around each point.

    A patch is described by the texture energies of a learned filter bank. A deeper network separates true cancer patches
    better, but from weak labels it learned the training patches by heart (docs/log.md).
    """

    def __init__(self, params: GlimpseParams, classes: Classes | None = None) -> None:
        super().__init__(classes)
        self.size = params.size
        self.texture = FilterBank(params.channels)
        self.evidence = nn.Sequential(
            nn.Linear(self.texture.width, 32), nn.ReLU(), nn.Linear(32, self.outputs)
        )

    def weigh(self, images: Tensor, points: Tensor, folds: Tensor | None = None) -> Tensor:
        """Return the evidence for cancer at each point, a logit: points [P, M, 2] -> [P, M], or [P, M, C]."""
        patches = crop_patches(images, points, self.size)
        with exact_region(images):
            evidence: Tensor = self.evidence(self.texture.describe_patches(patches.flatten(0, 1)))
        return evidence.reshape(*points.shape[:2], *self.prior.shape)


def crop_patches(images: Tensor, points: Tensor, size: int) -> Tensor:
    """Cut a square patch around every point by one gather; outside the image there is 0.

    Args:
        images: [P, 1, S, S].
        points: [P, M, 2], (x, y) in [0, 1].
        size: side of a patch in pixels.

    Returns:
        [P, M, 1, size, size].
    """
    half = size // 2
    padded = F.pad(images[:, 0], (half, size - half, half, size - half))
    side = images.shape[-1]
    corner = (points * side).floor().long().clamp(0, side - 1)
    offsets = torch.arange(size, device=images.device)
    rows = corner[..., 1, None, None] + offsets[:, None]
    columns = corner[..., 0, None, None] + offsets[None, :]
    prompt = torch.arange(len(images), device=images.device)[:, None, None, None]
    return padded[prompt, rows, columns][:, :, None]
