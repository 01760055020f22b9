"""Choose k points in an image by the policy or by a baseline, such as uniform or centre; all return cell numbers."""

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.model.point_sets import chosen_points
from grpo_pipeline.tasks.attention.model.sam import cell_centres

ORACLE, CONSTANT = "oracle", "constant"
RULES = (
    *("policy", "greedy", "uniform", "centre", "fixed", CONSTANT, "blobs", "none"),
    *(ORACLE, "shuffled"),
)


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
    return distance.topk(k, largest=False).indices[:, None]


def region_centroids(cells: Tensor, grid: int) -> Tensor:
    """Return the mean (x, y) of the allowed cells, [P, 2]."""
    centres = cell_centres(torch.arange(grid * grid, device=cells.device), grid)
    weight = cells.float()
    return (weight @ centres) / weight.sum(1, keepdim=True)


def oracle_logits(lesion_cells: Tensor, cells: Tensor) -> Tensor:
    """Return the map [P, V] of points inside the lesion, uniform in the region where no lesion is left or known."""
    # A preference of 50 nats: lesion cells always win, and the rest of the region is uniform.
    return 50.0 * (lesion_cells & cells).float()


BLOB_WIDTHS = (0.05, 0.07, 0.1)
"""Standard deviations of the inner Gaussians, in shares of the image side: blobs of about 15% to 30% of it."""


def blob_map(images: np.ndarray, grid: int) -> Tensor:
    """Return how much each cell looks like the middle of a dark blob, float64 [P, V]: the detector that nobody trains.

        max over s of  (G(1.6 s) - G(s)) * image   at the cell's centre

    A difference of Gaussians approximates the Laplacian at its best with the ratio 1.6 (Marr and Hildreth 1980); beyond the
    image the edge goes on.

    Args:
        images: grey levels, [P, S, S].
        grid: side of the cell grid.
    """
    side, values = images.shape[-1], images.astype(np.float32)
    centre = ((np.arange(grid) + 0.5) * side / grid).astype(np.int64)
    responses = []
    for width in BLOB_WIDTHS:
        inner, outer = (
            gaussian_filter(values, (0, sigma, sigma), mode="nearest")
            for sigma in (width * side, 1.6 * width * side)
        )
        responses.append((outer - inner)[:, centre][:, :, centre])  # [P, grid, grid]
    return torch.from_numpy(np.max(responses, axis=0).reshape(len(images), -1)).double()


def highest_points(scores: Tensor, cells: Tensor, k: int) -> Tensor:
    """Return the k allowed cells of the highest scores, highest first: [P, V] and bool [P, V] -> int64 [P, 1, k]."""
    return scores.masked_fill(~cells, -torch.inf).topk(k).indices[:, None]


def point_coordinates(rollouts: Rollouts, grid: int) -> Tensor:
    """Return the (x, y) in [0, 1] of every point, float32 [P, G, k, 2]; NaN where a set has stopped."""
    placed = chosen_points(rollouts, grid * grid)
    return cell_centres(placed.actions, grid).masked_fill(~placed.is_valid[..., None], torch.nan)


def lesion_share(actions: Tensor, lesion_cells: Tensor) -> np.ndarray:
    """Return the share of points whose cell centre lies in the lesion, [P, E, k] -> float64 [P]; NaN without a lesion.

    The action V is no point; the share is that of all points of the E sets together.
    """
    is_point = actions < lesion_cells.shape[1]
    cells = actions.masked_fill(~is_point, 0)
    is_hit = (
        torch.gather(lesion_cells[:, None].expand(-1, actions.shape[1], -1), 2, cells) & is_point
    )
    return _known(is_hit.sum((1, 2)).double() / is_point.sum((1, 2)).double(), lesion_cells)


def points_used(actions: Tensor, choices: int) -> np.ndarray:
    """Return the mean number of points of a set, [P, E, k] -> float64 [P]; the action ``choices`` is no point."""
    return (actions < choices).double().sum(2).mean(1).cpu().numpy()


def lesion_coverage(lesion_cells: Tensor, cells: Tensor) -> np.ndarray:
    """Return the share of allowed cells inside the lesion, float64 [P]: what uniform points hit on average."""
    return _known((lesion_cells & cells).double().sum(1) / cells.double().sum(1), lesion_cells)


def _known(values: Tensor, lesion_cells: Tensor) -> np.ndarray:
    return torch.where(lesion_cells.any(1), values, torch.nan).cpu().numpy()
