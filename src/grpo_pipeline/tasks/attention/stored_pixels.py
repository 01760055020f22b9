"""Read the arrays of a batch as they are stored, before anything is derived from them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.data.examples import Examples


@dataclass(frozen=True)
class Pixels:
    """Images and masks of P cores: images uint8, region, bag and lesion bool, [P, S, S] each.

    ``lesion`` is None but for an arm whose points are drawn in it; ``outline`` is the same mask of the cores whose outline is
    shown to the losses, and empty for the others; None where none is shown.
    """

    images: Tensor
    region: Tensor
    bag: Tensor
    lesion: Tensor | None
    outline: Tensor | None = None


def read_pixels(
    examples: Examples,
    rows: np.ndarray,
    *,
    device: torch.device,
    with_lesion: bool,
    shown: np.ndarray | None = None,
) -> Pixels:
    """Read the arrays of these rows and bring them to ``device``; of the outlines those where ``shown``, bool [P]."""
    outline = None
    if shown is not None:  # an outline that is not shown is not even read
        masks = np.zeros((len(rows), *examples.lesion.shape[1:]), dtype=bool)
        masks[shown] = examples.lesion[rows[shown]]
        outline = to_tensor(masks, np.arange(len(rows)), device)
    return Pixels(
        images=to_tensor(examples.images, rows, device),
        region=to_tensor(examples.region, rows, device),
        bag=to_tensor(examples.bag, rows, device),
        lesion=to_tensor(examples.lesion, rows, device) if with_lesion else None,
        outline=outline,
    )


def to_tensor(array: np.ndarray, rows: np.ndarray, device: torch.device) -> Tensor:
    """Return these rows of an array on ``device``."""
    # A map's rows are copied into memory of their own, which is writable; page-locked, it moves while the GPU computes.
    host = torch.from_numpy(np.ascontiguousarray(array[rows]))
    return (
        host.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else host.to(device)
    )
