"""Augment a training image and its masks: mirror, turn, shift, scale, and change grey levels.

Everything is a function of the generator, which is one of (seed, step): a resumed run shows the same. The geometry comes
before cells and bag are derived from the masks, so that points and heatmap live in the moved image.
"""

from dataclasses import replace

import torch
from torch import Generator, Tensor

from grpo_pipeline.tasks.attention.affine_moves import choose, draw_moves, move
from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.data.params import AugmentationParams
from grpo_pipeline.tasks.attention.grey_changes import recolour
from grpo_pipeline.tasks.attention.stored_pixels import Pixels


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
