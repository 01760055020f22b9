"""Score when to stop placing points: one number per image and number of points so far."""

import torch
from torch import Tensor, nn

from grpo_pipeline.core.training.precision import at_least_float32

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
