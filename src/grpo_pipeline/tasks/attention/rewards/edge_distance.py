"""Measure how far every cell is from the edge of its region: an exact distance transform without a loop over cells."""

import torch
from torch import Tensor
from torch.nn import functional as F


def distance_to_edge(cells: Tensor, grid: int) -> Tensor:
    """Return the distance of each region cell's centre to the region's edge, as a share of the image side.

        (|nearest centre outside - centre| - 1/2) / grid,   distances in cells

    The half cell is the way from the edge to the centre outside: a cell at a straight edge is half a cell away from it.
    Beyond the image nothing is of the region. Squared Euclidean distances are separable: along the columns first, then along the
    rows (Felzenszwalb and Huttenlocher 2012, "Distance transforms of sampled functions", section 2; here by enumeration, since a
    row has few cells).

    Args:
        cells: bool [P, V], V = grid * grid.
        grid: side of the cell grid.

    Returns:
        float32 [P, V], at least half a cell inside the region and 0 outside.
    """
    is_inside = F.pad(cells.reshape(-1, grid, grid), (1, 1, 1, 1))
    place = torch.arange(grid + 2, device=cells.device, dtype=torch.float32)
    squares = (place[:, None] - place).square()
    # [P, i, i', j]: from row i to the cells outside of column j, then [P, i, j, j'].
    down = squares[None, :, :, None].masked_fill(is_inside[:, None], torch.inf).amin(2)
    across = (down[:, :, None] + squares[None, None]).amin(3)
    distance = (across.sqrt() - 0.5) / grid
    return distance.where(is_inside, 0.0)[:, 1:-1, 1:-1].flatten(1)
