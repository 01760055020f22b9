"""Move the position embeddings of SAM's image encoder to another grid.

Two kinds, both learned at one grid (64 x 64 cells for 1024 pixels): an absolute one per cell, and, in every attention layer,
one per signed distance between two rows and two columns. Window layers look no further than their window, whatever the size
of the image: theirs stay.
"""

from torch import Tensor
from torch.nn import functional as F


def resize_absolute(embedding: Tensor, grid: int) -> Tensor:
    """Interpolate one vector per cell, bicubic over cell centres.

    Source: Dosovitskiy et al. 2021, arXiv 2010.11929, section 3.2; bicubic as in public vision transformers.

    Args:
        embedding: [1, h, w, C].
        grid: side of the new grid, in cells.

    Returns:
        [1, grid, grid, C]; the same tensor where the grid is the same.
    """
    if embedding.shape[1:3] == (grid, grid):
        return embedding
    planes = F.interpolate(
        embedding.permute(0, 3, 1, 2), size=(grid, grid), mode="bicubic", align_corners=False
    )
    return planes.permute(0, 2, 3, 1).contiguous()


def resize_relative(embedding: Tensor, grid: int) -> Tensor:
    """Interpolate one vector per signed distance, linearly, as segment-anything does each time it runs.

    Source: Li et al. 2022, "Exploring plain vision transformer backbones for object detection", arXiv 2203.16527; the
    interpolation is that of ``segment_anything``'s ``get_rel_pos``.

    Args:
        embedding: [2 * side - 1, C], distances from -(side - 1) to side - 1.
        grid: side of the new grid, in cells.

    Returns:
        [2 * grid - 1, C]; the same tensor where the length is the same.
    """
    length = 2 * grid - 1
    if len(embedding) == length:
        return embedding
    return F.interpolate(embedding.T[None], size=length, mode="linear", align_corners=False)[
        0
    ].T.contiguous()


def fit_positions(
    weights: dict[str, Tensor], *, grid: int, global_layers: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return the weights with the position embeddings of a ``grid`` x ``grid`` encoder.

    Args:
        weights: by the names of ``SamModel``.
        grid: side of the encoder's grid, in cells.
        global_layers: numbers of the layers that attend over the whole grid.
    """
    fitted = dict(weights)
    absolute = "vision_encoder.pos_embed"
    relative = [
        f"vision_encoder.layers.{i}.attn.rel_pos_{axis}" for i in global_layers for axis in "hw"
    ]
    if absolute in fitted:
        fitted[absolute] = resize_absolute(fitted[absolute], grid)
    for name in filter(fitted.__contains__, relative):
        fitted[name] = resize_relative(fitted[name], grid)
    return fitted
