"""The attention policy: which cells of the feature grid to look at, and how good this image is expected to be.

Two heads on one trunk: an attention map (logits over the V = h*w cells) and a scalar value. The map's last layer starts at
zero, so that an untrained policy is exactly uniform over the region. The trunk reads the encoder's features and, beside
them, the texture of each cell.
"""

import torch
from torch import Tensor, nn

from grpo_pipeline.core.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.value_pool import ValuePool, pool_cells, pooled_channels


class PolicyNetwork(nn.Module):
    """Map features [P, C, h, w] and texture [P, T, h, w] to attention logits [P, V] and values [P]."""

    def __init__(
        self, feature_channels: int, hidden_channels: int, texture_channels: int, value_pool: ValuePool = "image"
    ) -> None:
        super().__init__()
        self.value_pool = value_pool
        self.trunk = nn.Sequential(
            _conv_block(feature_channels + texture_channels, hidden_channels),
            _conv_block(hidden_channels, hidden_channels),
        )
        self.attention = nn.Conv2d(hidden_channels, 1, kernel_size=1)
        for parameter in self.attention.parameters():
            nn.init.zeros_(parameter)
        self.value = nn.Linear(pooled_channels(hidden_channels, value_pool), 1)

    def forward(self, features: Tensor, texture: Tensor, cells: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (logits [P, V], values [P]).

        Args:
            features: of the encoder, [P, C, h, w].
            texture: of each cell, [P, T, h, w].
            cells: bool [P, V], True inside the region; only a value head that looks at the region needs them.
        """
        trunk = at_least_float32(self.trunk(torch.cat([features, texture], dim=1)))
        # In bfloat16 a logit of 5 is known to 0.03 only, and so is the ratio of the update.
        with exact_region(trunk):
            logits = self.attention(trunk).flatten(1)
            values = self.value(pool_cells(trunk, logits, cells, self.value_pool)).squeeze(-1)
        return logits, values


def _conv_block(inputs: int, outputs: int) -> nn.Module:
    # GroupNorm, not BatchNorm: the same numbers in rollout and update, in train and eval mode (ratio 1 at the first update).
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU())
