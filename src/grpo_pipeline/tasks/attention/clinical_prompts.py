"""Read clinical values as prompts: one token per column beside the tokens of the points."""

import math

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics


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
    moves all F * C weights by the same amount, from growing with their number. With more than one output each has its weights.
    """

    def __init__(self, columns: int, channels: int, outputs: int = 1) -> None:
        super().__init__()
        several = () if outputs == 1 else (outputs,)
        self.weights = nn.Parameter(torch.zeros(*several, columns, channels))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [P], or [P, outputs], from tokens [P, F, C]."""
        if self.weights.ndim > 2:
            tokens = tokens[:, None]
        return (tokens * self.weights).sum((-2, -1)) / math.sqrt(tokens[0].numel())
