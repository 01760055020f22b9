"""Clinical values as prompt tokens: one token per column beside the tokens of the points.

After ProstNFound (Wilson et al. 2024), whose SAM reads age and PSA as prompts. How this differs: an unknown value has a token
of its own and is not imputed; known values are dropped to it in training (``clinical_values.drop_values``).
"""

import math

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.attention.clinical_values import ClinicalStatistics


class ClinicalPrompt(nn.Module):
    """Turn clinical values [P, F] into tokens [P, F, C].

        token[p, f] = w_f * (value[p, f] - mean_f) / std_f + e_f    where the value is known
                    = u_f                                           where it is NaN

    w_f, e_f and u_f are learned, [C] each; e_f is the column's embedding and the bias of its linear map at once. Mean and
    standard deviation are buffers: they are saved with the weights, so that a model normalises as it was trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, statistics: ClinicalStatistics, channels: int) -> None:
        super().__init__()
        n = len(statistics.columns)
        self.register_buffer("mean", torch.tensor(statistics.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(statistics.std, dtype=torch.float32))
        # As torch starts a linear map of one input, and SAM its point embeddings.
        self.slope = nn.Parameter(torch.empty(n, channels).uniform_(-1, 1))
        self.column = nn.Parameter(torch.randn(n, channels))
        self.unknown = nn.Parameter(torch.randn(n, channels))

    def forward(self, values: Tensor) -> Tensor:
        """Return tokens [P, F, C]; a value that is NaN has no influence, also on the gradient."""
        is_known = ~values.isnan()
        # Filled before any arithmetic: NaN times a gradient of 0 would be NaN.
        normalised = (torch.where(is_known, values, self.mean) - self.mean) / self.std
        tokens = normalised.unsqueeze(-1) * self.slope + self.column
        return torch.where(is_known.unsqueeze(-1), tokens, self.unknown)


class ClinicalReadOut(nn.Module):
    """Add a linear reading of all tokens to a class logit: for a class decoder that sees patches and no token.

        logit[p] = sum_f r_f . token[p, f] / sqrt(F * C)

    r starts at 0, so that training starts from the decoder alone. The root keeps the logit's change by one step of Adam, which
    moves all F * C weights by the same amount, from growing with their number.
    """

    def __init__(self, columns: int, channels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(columns, channels))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [P] from tokens [P, F, C]."""
        return (tokens * self.weights).sum((1, 2)) / math.sqrt(self.weights.numel())
