"""Change the grey levels of ultrasound images: gain, gamma and speckle.

A pixel that shows something keeps at least grey level 1, and padding stays 0: standardisation tells the two apart by that.
"""

import torch
from torch import Generator, Tensor

from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams


def recolour(images: Tensor, params: AugmentationParams, *, generator: Generator) -> Tensor:
    """Return uint8 images [P, S, S] with other grey levels.

        v' = 255 * (gain * (v / 255)^gamma * speckle),   rounded and clamped to [1, 255]

    Args:
        images: uint8 [P, S, S].
        params: how far each may go.
        generator: on the CPU; the noise of the pixels is drawn on the images' device, seeded by it.
    """
    device = images.device
    gain, power = torch.rand(2, len(images), 1, 1, generator=generator).to(device)
    levels = (images.float() / 255) ** torch.exp(params.gamma * (2 * power - 1)) * (
        1 + params.gain * (2 * gain - 1)
    )
    seed = int(torch.randint(2**62, (), generator=generator))
    if params.speckle:
        noise = torch.randn(
            images.shape, generator=Generator(device).manual_seed(seed), device=device
        )
        levels = levels * (1 + params.speckle * noise)
    changed: Tensor = (255 * levels).round().clamp(1, 255).to(torch.uint8)
    return changed.masked_fill(images == 0, 0)
