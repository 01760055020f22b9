"""Convert grey images to the form that the weights of a checkpoint were trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder

# Of the red, green and blue channel of the 0 to 255 images SAM was trained on (segment_anything/build_sam.py).
SAM_MEAN = (123.675, 116.28, 103.53)

SAM_STD = (58.395, 57.12, 57.375)


@dataclass(frozen=True, kw_only=True)
class GreyBatch(AttentionBatch):
    """A batch that keeps the grey levels as stored, 0 to 255: uint8 [P, S, S]."""

    grey: Tensor


def check_channels(checkpoint: SamEncoder, channels: int) -> None:
    """Refuse an encoder that cannot read these images.

    Raises:
        ValueError: if the encoder reads neither one nor three channels, or its normalisation has another number.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"checkpoint {checkpoint.path} must read images of 1 or 3 channels, got {channels}; "
            "choose weights for grey or RGB images"
        )
    if checkpoint.normalisation == "sam" and channels != 3:
        raise ValueError(
            f"attention.model.encoder.normalisation must be 'medsam' or 'none' for {checkpoint.path}, which reads 1 channel, "
            "got 'sam', whose statistics are those of RGB images; change it"
        )


def encoder_input(normalisation: str, batch: AttentionBatch, *, channels: int) -> Tensor:
    """Return the encoder's input, [P, channels, S, S]; grey is repeated.

    Args:
        normalisation: ``sam``: (level - mean_c) / std_c of its RGB images; ``medsam``: stretched per image from 0 (its
            darkest pixel) to 1 (its brightest), 0 where there is one level; ``none``: the standardised images, as a SAM
            trained here sees them.
        batch: with grey levels, unless the normalisation is ``none``.
        channels: of the encoder.

    Raises:
        ValueError: if grey levels are needed and missing.
    """
    if normalisation == "none":
        return batch.images.expand(-1, channels, -1, -1)
    if not isinstance(batch, GreyBatch):
        raise ValueError(
            f"the batch must hold grey levels for the normalisation '{normalisation}', got {type(batch).__name__}; "
            "make it with AttentionTask.make_batch"
        )
    levels = batch.grey.to(torch.float32)[:, None]  # [P, 1, S, S]
    if normalisation == "sam":
        mean, std = (
            torch.tensor(values, device=levels.device)[:, None, None]
            for values in (SAM_MEAN, SAM_STD)
        )
        values = (levels - mean) / std  # [P, 3, S, S]
    else:
        low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
        values = (levels - low) / (high - low).clamp(min=1e-8)  # [P, 1, S, S]
    return values.expand(-1, channels, -1, -1)
