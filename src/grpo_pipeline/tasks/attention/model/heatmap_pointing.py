"""Read what the heatmap says by itself, without any mask of a test image but the region."""

import numpy as np
import torch
from torch import Tensor

TOP_SHARE = 0.05


def highest_cells(heatmap: Tensor, cells: Tensor, *, share: float = TOP_SHARE) -> Tensor:
    """Return the mean over the highest ``share`` of the allowed cells, at least one of them: [P, V] -> [P].

    Args:
        heatmap: probability of each cell, [P, V].
        cells: bool [P, V], True inside the region; at least one per row.
        share: in (0, 1].
    """
    ordered = heatmap.masked_fill(~cells, -torch.inf).sort(dim=1, descending=True).values
    count = (share * cells.sum(1)).ceil().clamp(min=1)  # [P]
    is_top = torch.arange(cells.shape[1], device=cells.device) < count[:, None]
    return ordered.where(is_top, 0.0).sum(1) / count


def pointing_hit(heatmap: Tensor, cells: Tensor, lesion: Tensor) -> np.ndarray:
    """Return 1 where the highest allowed cell lies in the lesion and 0 where it does not, float64 [P]; NaN without a lesion.

    The pointing game: Zhang et al. 2018, "Top-down neural attention by excitation backprop", section 5.1; how this differs:
    no tolerance around the lesion.

    Args:
        heatmap: probability of each cell, [P, V].
        cells: bool [P, V], True inside the region.
        lesion: bool [P, V], True inside the lesion.
    """
    highest = heatmap.masked_fill(~cells, -torch.inf).argmax(1, keepdim=True)
    hit = torch.gather(lesion, 1, highest)[:, 0].double()
    return np.asarray(torch.where(lesion.any(1), hit, torch.nan).cpu().numpy())
