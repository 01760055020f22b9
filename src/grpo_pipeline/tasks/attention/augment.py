"""Show a training image each time a little differently, with the masks that belong to it.

Everything is a function of the generator, which is one of (seed, step): a resumed run shows the same. The geometry comes
before cells and bag are derived from the masks, so that points and heatmap live in the moved image.
"""

from dataclasses import replace

from torch import Generator, Tensor

from grpo_pipeline.tasks.attention.augment_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.geometry import affine_maps, choose, draw_moves, move
from grpo_pipeline.tasks.attention.intensity import recolour
from grpo_pipeline.tasks.attention.pixels import Pixels


def augment(pixels: Pixels, params: AugmentationParams, *, grid: int, points: int, generator: Generator) -> Pixels:
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
        maps = affine_maps(draw_moves(len(pixels.images), params, generator=generator)).to(pixels.images.device)
        moved = move(pixels, maps)
        pixels = choose(moved, pixels, is_usable(pixels, moved, grid=grid, points=points))
    if params.recolours:
        pixels = replace(pixels, images=recolour(pixels.images, params, generator=generator))
    return pixels


def is_usable(before: Pixels, after: Pixels, *, grid: int, points: int) -> Tensor:
    """Say which cores can be trained on after the move, bool [P]: room for the points, and a bag where there was one."""
    has_room = region_cells(after.region, grid).sum(1) >= points
    had_bag, has_bag = ((pixels.bag & pixels.region).flatten(1).any(1) for pixels in (before, after))
    return has_room & (has_bag | ~had_bag)
