"""Move images and masks together: one affine map per core, the same for everything that belongs to it.

Coordinates are those of ``torch.nn.functional.affine_grid`` with ``align_corners=False``: (x, y) in [-1, 1] over the square
image, x to the right, y downwards, pixel edges (not centres) at -1 and 1. A map takes a place in the new image to the place in
the old one that is shown there.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.stored_pixels import Pixels


@dataclass(frozen=True)
class Moves:
    """Geometric changes of each image, applied in this order: mirror, scale, turn, shift; all [P].

    Attributes:
        mirror: -1 where left and right change places, else 1.
        scale: factor of the size.
        angle: radians; positive turns x (right) towards y (down), clockwise as it is seen.
        shift_x: share of the image side, to the right.
        shift_y: share of the image side, downwards.
    """

    mirror: Tensor
    scale: Tensor
    angle: Tensor
    shift_x: Tensor
    shift_y: Tensor


def draw_moves(n: int, params: AugmentationParams, *, generator: Generator) -> Moves:
    """Draw the moves of n cores; how many numbers are drawn does not depend on the parameters. All on the CPU."""
    # The second row is not read: without it a seed would show other images than those that results were measured with.
    flip, _, scale, angle, shift_x, shift_y = torch.rand(6, n, generator=generator)
    low, high = params.scale
    return Moves(
        mirror=torch.where(flip < params.horizontal_flip, -1.0, 1.0),
        scale=low + (high - low) * scale,
        angle=math.radians(params.rotation_degrees) * (2 * angle - 1),
        shift_x=params.translation * (2 * shift_x - 1),
        shift_y=params.translation * (2 * shift_y - 1),
    )


def move(pixels: Pixels, moves: Moves) -> Pixels:
    """Move every core: images bilinearly, rounded to grey levels; masks by their nearest pixel; outside is 0.

        old = M^-1 R(-angle) (new - 2 shift) / scale: the inverse of mirror, scale, turn, shift

    Args:
        pixels: of P cores, on any device.
        moves: of the same cores, on the CPU.
    """
    n, side = pixels.images.shape[:2]
    cos, sin = moves.angle.cos() / moves.scale, moves.angle.sin() / moves.scale
    turn_back = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    linear = turn_back * torch.stack([moves.mirror, torch.ones(n)], -1)[:, :, None]
    shift = 2 * torch.stack([moves.shift_x, moves.shift_y], -1)[:, :, None]
    maps = torch.cat([linear, -linear @ shift], dim=2).to(pixels.images.device)  # [P, 2, 3]
    places = F.affine_grid(maps, [n, 1, side, side], align_corners=False)
    grey = F.grid_sample(
        pixels.images[:, None].float(), places, mode="bilinear", align_corners=False
    )
    masks = {
        name: mask for name, mask in vars(pixels).items() if name != "images" and mask is not None
    }
    stacked = torch.stack(list(masks.values()), 1).float()
    moved = F.grid_sample(stacked, places, mode="nearest", align_corners=False) > 0.5
    return replace(
        pixels,
        images=grey[:, 0].round().clamp(0, 255).to(torch.uint8),
        **{name: moved[:, place] for place, name in enumerate(masks)},
    )


def choose(first: Pixels, second: Pixels, is_first: Tensor) -> Pixels:
    """Return the first pixels of a core where ``is_first``, bool [P], else the second ones."""
    chosen = {
        name: torch.where(is_first[:, None, None], value, getattr(second, name))
        for name, value in vars(first).items()
        if value is not None
    }
    return replace(first, **chosen)
