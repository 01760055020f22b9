"""Choose k points in an image by a baseline, such as centre or dark blobs, and measure where points lie; cells are numbers."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.ranking import first_largest
from grpo_pipeline.core.training.precision import exact_region
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.model.point_sets import chosen_points
from grpo_pipeline.tasks.attention.model.policy_params import BLOB_WIDTHS
from grpo_pipeline.tasks.attention.model.sam import cell_centres

ORACLE, CONSTANT, HEATMAP, POOLED, START = "oracle", "constant", "heatmap", "pooled", "start"

RULES = (
    *("policy", START, "greedy", "uniform", "centre", "fixed", CONSTANT, "blobs", "none"),
    *(ORACLE, "shuffled", POOLED),
)

PER_CELL = 4
"""Side of a cell in the pixels that the blobs are sought in."""


def nearest_cells(targets: Tensor, cells: Tensor, grid: int, k: int) -> Tensor:
    """Return the k allowed cells nearest to a target point of each image.

    Args:
        targets: [P, 2], (x, y) in [0, 1].
        cells: bool [P, V], True where allowed; at least k per row.
        grid: side of the cell grid.
        k: number of points.

    Returns:
        int64 [P, 1, k], nearest first.
    """
    centres = cell_centres(torch.arange(grid * grid, device=cells.device), grid)
    distance = (centres[None] - targets[:, None]).square().sum(-1).masked_fill(~cells, torch.inf)
    return first_largest(-distance, k)[1][:, None]


def region_centroids(cells: Tensor, grid: int) -> Tensor:
    """Return the mean (x, y) of the allowed cells, [P, 2]."""
    centres = cell_centres(torch.arange(grid * grid, device=cells.device), grid)
    weight = cells.float()
    return (weight @ centres) / weight.sum(1, keepdim=True)


def oracle_logits(lesion_cells: Tensor, cells: Tensor) -> Tensor:
    """Return the map [P, V] of points inside the lesion, uniform in the region where no lesion is left or known."""
    # A preference of 50 nats: lesion cells always win, and the rest of the region is uniform.
    return 50.0 * (lesion_cells & cells).float()


def blob_map(images: Tensor, grid: int, *, widths: Sequence[float] = BLOB_WIDTHS) -> Tensor:
    """Return how much each cell looks like the middle of a dark blob, float64 [P, V]: the detector that nobody trains.

        max over s of  (G(1.6 s) - G(s)) * image   at the cell's centre

    A difference of Gaussians approximates the Laplacian at its best with the ratio 1.6 (Marr and Hildreth 1980). Pixels of value
    exactly 0, which standardised images have where there is no image, count as the darkest of the image; beyond the square its
    edge goes on.

    Args:
        images: grey levels, [P, 1, S, S], in any unit.
        grid: side of the cell grid.
        widths: s, standard deviations of the inner Gaussians in shares of the image side.
    """
    side = PER_CELL * grid
    with exact_region(images):
        values = images.float()
        values = (values - values.amin((2, 3), keepdim=True)) * (values != 0)
        # In double precision: what is left of two blurred images must not depend on the size of the batch.
        small = F.adaptive_avg_pool2d(values.double(), side)
        blurred = [
            [_blur(small, sigma) for sigma in (width * side, 1.6 * width * side)]
            for width in widths
        ]
        responses = torch.stack([outer - inner for inner, outer in blurred]).amax(0)
        return F.avg_pool2d(responses, PER_CELL).flatten(1)  # [P, V]


def _blur(images: Tensor, sigma: float) -> Tensor:
    """Return the images [P, 1, S, S] convolved with a Gaussian, along the rows and then along the columns."""
    radius = max(1, round(3 * sigma))
    place = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernel = (-0.5 * (place / sigma) ** 2).exp()
    kernel = (kernel / kernel.sum())[None, None, None]  # [1, 1, 1, 2 radius + 1]
    across = F.conv2d(F.pad(images, (radius, radius, 0, 0), mode="replicate"), kernel)
    down = F.pad(across, (0, 0, radius, radius), mode="replicate")
    return F.conv2d(down, kernel.transpose(2, 3))


def blob_prior(
    images: Tensor,
    cells: Tensor,
    grid: int,
    *,
    strength: float,
    widths: Sequence[float] = BLOB_WIDTHS,
) -> Tensor:
    """Return logits that prefer the middles of dark blobs, [P, V]: the blob map in its standard deviations over the region.

    Args:
        images: [P, 1, S, S].
        cells: bool [P, V], True inside the region; at least one per row.
        grid: side of the cell grid.
        strength: nats per standard deviation.
        widths: as in :func:`blob_map`.
    """
    blobs, inside = blob_map(images, grid, widths=widths), cells.double()
    count = inside.sum(1, keepdim=True)
    mean = (blobs * inside).sum(1, keepdim=True) / count
    spread = (((blobs - mean).square() * inside).sum(1, keepdim=True) / count).sqrt()
    return (strength * (blobs - mean) / (spread + 1e-6) * inside).float()


def highest_points(scores: Tensor, cells: Tensor, k: int) -> Tensor:
    """Return the k allowed cells of the highest scores, highest first: [P, V] and bool [P, V] -> int64 [P, 1, k]."""
    return first_largest(scores.masked_fill(~cells, -torch.inf), k)[1][:, None]


def point_coordinates(rollouts: Rollouts, grid: int) -> Tensor:
    """Return the (x, y) in [0, 1] of every point, float32 [P, G, k, 2]; NaN where a set has stopped."""
    placed = chosen_points(rollouts, grid * grid)
    return cell_centres(placed.actions, grid).masked_fill(~placed.is_valid[..., None], torch.nan)


def lesion_share(actions: Tensor, lesion_cells: Tensor) -> np.ndarray:
    """Return the share of points whose cell centre lies in the lesion, [P, E, k] -> float64 [P]; NaN without a lesion.

    The share is that of all points of the E sets together: actions below V.
    """
    is_point = actions < lesion_cells.shape[1]
    cells = actions.masked_fill(~is_point, 0)
    is_hit = (
        torch.gather(lesion_cells[:, None].expand(-1, actions.shape[1], -1), 2, cells) & is_point
    )
    return _known(is_hit.sum((1, 2)).double() / is_point.sum((1, 2)).double(), lesion_cells)


def points_used(actions: Tensor, cells: int) -> np.ndarray:
    """Return the mean number of points of a set, of both labels, [P, E, k] -> float64 [P]; the action ``cells`` is no point."""
    return (actions < cells).double().sum(2).mean(1).cpu().numpy()


def lesion_coverage(lesion_cells: Tensor, cells: Tensor) -> np.ndarray:
    """Return the share of allowed cells inside the lesion, float64 [P]: what uniform points hit on average."""
    return _known((lesion_cells & cells).double().sum(1) / cells.double().sum(1), lesion_cells)


def _known(values: Tensor, lesion_cells: Tensor) -> np.ndarray:
    return torch.where(lesion_cells.any(1), values, torch.nan).cpu().numpy()
