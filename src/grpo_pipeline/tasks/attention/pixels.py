"""The arrays of a batch as they are stored, before anything is derived from them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.examples import Examples


@dataclass(frozen=True)
class Pixels:
    """Images and masks of P cores: images uint8, region, bag and lesion bool, [P, S, S] each.

    ``lesion`` is None but for an arm whose points are drawn in it.
    """

    images: Tensor
    region: Tensor
    bag: Tensor
    lesion: Tensor | None


def read_pixels(examples: Examples, rows: np.ndarray, *, device: torch.device, with_lesion: bool) -> Pixels:
    """Read the arrays of these rows and bring them to ``device``."""
    return Pixels(
        images=to_tensor(examples.images, rows, device),
        region=to_tensor(examples.region, rows, device),
        bag=to_tensor(examples.bag, rows, device),
        lesion=to_tensor(examples.lesion, rows, device) if with_lesion else None,
    )


def to_tensor(array: np.ndarray, rows: np.ndarray, device: torch.device) -> Tensor:
    """Return these rows of an array on ``device``."""
    # A map's rows are copied into memory of their own, which is writable; page-locked, it moves while the GPU computes.
    host = torch.from_numpy(np.ascontiguousarray(array[rows]))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
