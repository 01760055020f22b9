"""Policy network: a score for each cell of the feature grid, and the reward expected for the image.

Two heads on one trunk: an attention map (logits over the V = h*w cells) and a scalar value. The map's last layer starts at
zero, so that an untrained policy is exactly uniform over the region. The trunk reads the encoder's features and, beside
them, the texture of each cell.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.model.u_net import convolution


class PolicyNetwork(nn.Module):
    """Map features [P, C, h, w] and texture [P, T, h, w] to attention logits [P, V] and values [P]."""

    def __init__(
        self,
        feature_channels: int,
        hidden_channels: int,
        texture_channels: int,
        *,
        reads: Literal["image", "cell", "statistics"] = "image",
    ) -> None:
        """Build the network; unless it reads the ``image``, a cell's logit depends on the texture of that cell alone.

        With ``statistics`` the logit is linear in it: there is no hidden layer.
        """
        super().__init__()
        self.reads_image = reads == "image"
        self.trunk: nn.Module
        if reads == "image":
            self.trunk = nn.Sequential(
                convolution(feature_channels + texture_channels, hidden_channels),
                convolution(hidden_channels, hidden_channels),
            )
        elif reads == "cell":
            # No neighbours, and no GroupNorm, which would take means over the image.
            self.trunk = nn.Sequential(nn.Conv2d(texture_channels, hidden_channels, 1), nn.ReLU())
        else:
            self.trunk, hidden_channels = nn.Identity(), texture_channels
        self.attention = nn.Conv2d(hidden_channels, 1, kernel_size=1)
        for parameter in self.attention.parameters():
            nn.init.zeros_(parameter)
        self.value = nn.Linear(hidden_channels, 1)

    def forward(self, features: Tensor, texture: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits [P, V], values [P]).

        Args:
            features: of the encoder, [P, C, h, w].
            texture: of each cell, [P, T, h, w].
        """
        inputs = torch.cat([features, texture], dim=1) if self.reads_image else texture
        trunk = at_least_float32(self.trunk(inputs))
        # In bfloat16 a logit of 5 is known to 0.03 only, and so is the ratio of the update.
        with exact_region(trunk):
            logits = self.attention(trunk).flatten(1)
            values = self.value(trunk.mean(dim=(2, 3))).squeeze(-1)  # [P]
        return logits, values
