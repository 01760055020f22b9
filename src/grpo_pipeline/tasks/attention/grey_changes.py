"""Change the grey levels of ultrasound images: gain, gamma, speckle and blacked-out squares.

A pixel that shows something keeps at least grey level 1, and padding stays 0: standardisation tells the two apart by that.
"""

import torch
from torch import Generator, Tensor

from grpo_pipeline.tasks.attention.data.params import AugmentationParams


def recolour(images: Tensor, params: AugmentationParams, *, generator: Generator) -> Tensor:
    """Return uint8 images [P, S, S] with other grey levels.

        v' = 255 * (gain * (v / 255)^gamma * speckle),   rounded and clamped to [1, 255]; 0 in a blacked-out square

    Args:
        images: uint8 [P, S, S].
        params: how far each may go.
        generator: on the CPU; the noise of the pixels is drawn on the images' device, seeded by it.
    """
    n, device = len(images), images.device
    gain, power = torch.rand(2, n, 1, 1, generator=generator).to(device)
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
    is_dark = blackout(n, images.shape[-1], params, generator=generator).to(device)
    return changed.masked_fill((images == 0) | is_dark, 0)


def blackout(n: int, side: int, params: AugmentationParams, *, generator: Generator) -> Tensor:
    """Draw squares, bool [n, side, side], True inside; each lies in the image as a whole."""
    width = max(1, round(params.blackout_size * side))
    corners = (
        torch.rand(2, n, params.blackout_patches, 1, generator=generator) * (side - width + 1)
    ).floor()
    place = torch.arange(side)
    is_row, is_column = ((place >= corners) & (place < corners + width)).float()
    return torch.einsum("pni,pnj->pij", is_row, is_column) > 0
