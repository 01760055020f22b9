"""Policy network: a score for each cell of the feature grid, and the reward expected for the image.

Two heads on one trunk: an attention map (logits over the V = h*w cells) and a scalar value. The map's last layer starts at
zero, so that an untrained policy is exactly uniform over the region. The trunk reads the encoder's features and, beside
them, the texture of each cell.
"""

import torch
from torch import Tensor, nn

from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.params import PolicyReads, ValuePool

# When to stop placing points: one number per image and number of points so far.

# Log odds of a stop before training: P(stop) = 0.12, so that an untrained policy keeps nearly all points and still tries.
INITIAL_LOG_ODDS = -2.0


class StopHead(nn.Module):
    """Map features [P, C, h, w] and texture [P, T, h, w] to log odds of stopping [P, S], one for each decision that may stop.

    Reads mean and maximum of every channel over the cells of the region. The last layer starts at zero weights: an untrained
    policy stops everywhere with the same probability.
    """

    def __init__(self, channels: int, hidden_channels: int, decisions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.LayerNorm(2 * channels), nn.Linear(2 * channels, hidden_channels), nn.ReLU()
        )
        self.log_odds = nn.Linear(hidden_channels, decisions)
        nn.init.zeros_(self.log_odds.weight)
        nn.init.constant_(self.log_odds.bias, INITIAL_LOG_ODDS)

    def forward(self, features: Tensor, texture: Tensor, cells: Tensor) -> Tensor:
        """Return the log odds [P, S].

        Args:
            features: [P, C, h, w].
            texture: [P, T, h, w].
            cells: bool [P, V], True inside the region; at least one per row.
        """
        values = torch.cat([features, texture], dim=1).flatten(2)
        is_inside = cells.unsqueeze(1)
        mean = (values * is_inside).sum(dim=-1) / is_inside.sum(dim=-1)
        highest = values.masked_fill(~is_inside, -torch.inf).amax(dim=-1)
        return at_least_float32(self.log_odds(self.trunk(torch.cat([mean, highest], dim=1))))


# How a map over cells becomes one vector per image, for the value head.
#
# The value is the expected reward of an image. The reward depends on points inside the region alone, while the mean over all
# cells also averages what lies outside of it.


def pool_cells(features: Tensor, logits: Tensor, cells: Tensor | None, pool: ValuePool) -> Tensor:
    """Pool a map over its cells.

    ``image``: mean over all cells. ``region``: mean and maximum over the cells of the region. ``attention``: mean over the
    cells of the region, weighted by the policy's map, through which no gradient flows.

    Args:
        features: [P, C, h, w].
        logits: attention logits [P, h*w].
        cells: bool [P, h*w], True inside the region, somewhere in every row; None will do for ``image``.
        pool: which of them.

    Returns:
        [P, C], or [P, 2C] with ``region``: the means, then the maxima.

    Raises:
        ValueError: if the cells are needed and None.
    """
    if pool == "image":
        return features.mean(dim=(2, 3))
    if cells is None:
        raise ValueError(
            f"the cells of the region must be given for value_pool '{pool}', got None; pass the context's cells"
        )
    flat = features.flatten(2)  # [P, C, V]
    if pool == "attention":
        weights = log_policy(logits.detach(), cells).exp()
        return torch.einsum("pcv,pv->pc", flat, weights)
    is_inside = cells.unsqueeze(1)
    mean = flat.masked_fill(~is_inside, 0.0).sum(2) / is_inside.sum(2)
    return torch.cat([mean, flat.masked_fill(~is_inside, -torch.inf).amax(2)], dim=1)


class PolicyNetwork(nn.Module):
    """Map features [P, C, h, w] and texture [P, T, h, w] to attention logits [P, V] and values [P]."""

    def __init__(
        self,
        feature_channels: int,
        hidden_channels: int,
        texture_channels: int,
        value_pool: ValuePool = "image",
        *,
        reads: PolicyReads = "image",
    ) -> None:
        """Build the network; unless it reads the ``image``, a cell's logit depends on the texture of that cell alone.

        With ``statistics`` the logit is linear in it: there is no hidden layer.
        """
        super().__init__()
        self.value_pool, self.reads_image = value_pool, reads == "image"
        self.trunk: nn.Module
        if reads == "image":
            self.trunk = nn.Sequential(
                _conv_block(feature_channels + texture_channels, hidden_channels),
                _conv_block(hidden_channels, hidden_channels),
            )
        elif reads == "cell":
            # No neighbours, and no GroupNorm, which would take means over the image.
            self.trunk = nn.Sequential(nn.Conv2d(texture_channels, hidden_channels, 1), nn.ReLU())
        else:
            self.trunk, hidden_channels = nn.Identity(), texture_channels
        self.attention = nn.Conv2d(hidden_channels, 1, kernel_size=1)
        for parameter in self.attention.parameters():
            nn.init.zeros_(parameter)
        # The region is pooled to mean and maximum.
        self.value = nn.Linear(hidden_channels * (2 if value_pool == "region" else 1), 1)

    def forward(
        self, features: Tensor, texture: Tensor, cells: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (logits [P, V], values [P]).

        Args:
            features: of the encoder, [P, C, h, w].
            texture: of each cell, [P, T, h, w].
            cells: bool [P, V], True inside the region; only a value head that looks at the region needs them.
        """
        inputs = torch.cat([features, texture], dim=1) if self.reads_image else texture
        trunk = at_least_float32(self.trunk(inputs))
        # In bfloat16 a logit of 5 is known to 0.03 only, and so is the ratio of the update.
        with exact_region(trunk):
            logits = self.attention(trunk).flatten(1)
            values = self.value(pool_cells(trunk, logits, cells, self.value_pool)).squeeze(-1)
        return logits, values


def _conv_block(inputs: int, outputs: int) -> nn.Module:
    # GroupNorm, not BatchNorm: the same numbers in rollout and update, in train and eval mode (ratio 1 at the first update).
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
    )
