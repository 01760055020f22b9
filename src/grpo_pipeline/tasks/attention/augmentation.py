"""Augment a training image and its masks: mirror, turn, shift, scale, and change grey levels.

Everything is a function of the generator, which is one of (seed, step): a resumed run shows the same. The geometry comes
before cells and bag are derived from the masks, so that points and heatmap live in the moved image.
"""

from dataclasses import replace

from torch import Generator

from grpo_pipeline.tasks.attention.affine_moves import choose, draw_moves, move
from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.grey_changes import recolour
from grpo_pipeline.tasks.attention.stored_pixels import Pixels


def augment(
    pixels: Pixels, params: AugmentationParams, *, grid: int, points: int, generator: Generator
) -> Pixels:
    """Return the pixels moved and with other grey levels.

    A core whose region would keep fewer cells than ``points``, or whose bag would leave the region entirely, stays where it
    is; its grey levels change all the same.

    Args:
        pixels: of P cores, on any device.
        params: what may happen.
        grid: side of the cell grid.
        points: number of points that a region must have room for.
        generator: on the CPU.
    """
    if params.moves:
        moved = move(pixels, draw_moves(len(pixels.images), params, generator=generator))
        # Usable after the move, bool [P]: room for the points, and a bag where there was one.
        has_room = region_cells(moved.region, grid).sum(1) >= points
        had_bag, has_bag = ((one.bag & one.region).flatten(1).any(1) for one in (pixels, moved))
        pixels = choose(moved, pixels, has_room & (has_bag | ~had_bag))
    if params.recolours:
        pixels = replace(pixels, images=recolour(pixels.images, params, generator=generator))
    return pixels
