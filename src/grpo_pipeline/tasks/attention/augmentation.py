"""Augment a training image and its masks: mirror, turn, shift, scale, and change grey levels.

Everything is a function of the generator, which is one of (seed, step): a resumed run shows the same. The geometry comes
before cells and bag are derived from the masks, so that points and heatmap live in the moved image.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import Pixels, region_cells
from grpo_pipeline.tasks.attention.data.params import AugmentationParams

# Move images and masks together: one affine map per core, the same for everything that belongs to it.
#
# Coordinates are those of ``torch.nn.functional.affine_grid`` with ``align_corners=False``: (x, y) in [-1, 1] over the square
# image, x to the right, y downwards, pixel edges (not centres) at -1 and 1. A map takes a place in the new image to the place in
# the old one that is shown there.


@dataclass(frozen=True)
class Moves:
    """Geometric changes of each image, applied in this order: mirror, scale, turn, shift; all [P].

    Attributes:
        mirror_x: -1 where left and right change places, else 1.
        mirror_y: -1 where top and bottom change places, else 1.
        scale: factor of the size.
        angle: radians; positive turns x (right) towards y (down), clockwise as it is seen.
        shift_x: share of the image side, to the right.
        shift_y: share of the image side, downwards.
    """

    mirror_x: Tensor
    mirror_y: Tensor
    scale: Tensor
    angle: Tensor
    shift_x: Tensor
    shift_y: Tensor


def draw_moves(n: int, params: AugmentationParams, *, generator: Generator) -> Moves:
    """Draw the moves of n cores; how many numbers are drawn does not depend on the parameters. All on the CPU."""
    flip_x, flip_y, scale, angle, shift_x, shift_y = torch.rand(6, n, generator=generator)
    low, high = params.scale
    return Moves(
        mirror_x=torch.where(flip_x < params.horizontal_flip, -1.0, 1.0),
        mirror_y=torch.where(flip_y < params.vertical_flip, -1.0, 1.0),
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
    linear = turn_back * torch.stack([moves.mirror_x, moves.mirror_y], -1)[:, :, None]
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


# Change the grey levels of ultrasound images: gain, gamma, speckle and blacked-out squares.
#
# A pixel that shows something keeps at least grey level 1, and padding stays 0: standardisation tells the two apart by that.


def recolour(images: Tensor, params: AugmentationParams, *, generator: Generator) -> Tensor:
    """Return uint8 images [P, S, S] with other grey levels.

        v' = 255 * (gain * (v / 255)^gamma * speckle),   rounded and clamped to [1, 255]; 0 in a blacked-out square

    Args:
        images: uint8 [P, S, S].
        params: how far each may go.
        generator: on the CPU; the noise of the pixels is drawn on the images' device, seeded by it.
    """
    n, device = len(images), images.device
    gain, power = torch.rand(2, n, 1, 1, generator=generator).to(device)
    levels = (images.float() / 255) ** torch.exp(params.gamma * (2 * power - 1)) * (
        1 + params.gain * (2 * gain - 1)
    )
    seed = int(torch.randint(2**62, (), generator=generator))
    if params.speckle:
        noise = torch.randn(
            images.shape, generator=Generator(device).manual_seed(seed), device=device
        )
        levels = levels * (1 + params.speckle * noise)
    changed: Tensor = (255 * levels).round().clamp(1, 255).to(torch.uint8)
    is_dark = blackout(n, images.shape[-1], params, generator=generator).to(device)
    return changed.masked_fill((images == 0) | is_dark, 0)


def blackout(n: int, side: int, params: AugmentationParams, *, generator: Generator) -> Tensor:
    """Draw squares, bool [n, side, side], True inside; each lies in the image as a whole."""
    width = max(1, round(params.blackout_size * side))
    corners = (
        torch.rand(2, n, params.blackout_patches, 1, generator=generator) * (side - width + 1)
    ).floor()
    place = torch.arange(side)
    is_row, is_column = ((place >= corners) & (place < corners + width)).float()
    return torch.einsum("pni,pnj->pij", is_row, is_column) > 0


def augment(
    pixels: Pixels, params: AugmentationParams, *, grid: int, points: int, generator: Generator
) -> tuple[Pixels, Tensor]:
    """Return the pixels moved and with other grey levels, and by how much each image is larger, [P] on the CPU.

    A core whose region would keep fewer cells than ``points``, or whose bag would leave the region entirely, stays where it
    is; its grey levels change all the same.

    Args:
        pixels: of P cores, on any device.
        params: what may happen.
        grid: side of the cell grid.
        points: number of points that a region must have room for.
        generator: on the CPU.
    """
    larger = torch.ones(len(pixels.images))
    if params.moves:
        moves = draw_moves(len(pixels.images), params, generator=generator)
        moved = move(pixels, moves)
        # Usable after the move, bool [P]: room for the points, and a bag where there was one.
        has_room = region_cells(moved.region, grid).sum(1) >= points
        had_bag, has_bag = ((one.bag & one.region).flatten(1).any(1) for one in (pixels, moved))
        is_usable = has_room & (has_bag | ~had_bag)
        pixels = choose(moved, pixels, is_usable)
        larger = torch.where(is_usable.cpu(), moves.scale, larger)
    if params.recolours:
        pixels = replace(pixels, images=recolour(pixels.images, params, generator=generator))
    return pixels, larger
