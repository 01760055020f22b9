"""Clinical values: scaled by the training split, dropped at random in training, and read as prompt tokens.

An unknown value stays unknown (NaN) up to the model, which has a token of its own for it. After ProstNFound (Wilson et al.
2024), whose SAM reads age and PSA as prompts. How this differs: an unknown value is not imputed; known values are dropped to it
in training (``drop_values``).
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.tasks.attention.params import ModelParams

Description = dict[str, dict[str, float | int]]


@dataclass(frozen=True)
class ClinicalStatistics:
    """The columns that become prompts, in order, with mean and standard deviation of each.

    Attributes:
        columns: names in the table.
        mean: of the known values, in the column's own unit.
        std: population standard deviation; 1 for a column with one value only.
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def neutral(cls, columns: tuple[str, ...]) -> Self:
        """Return mean 0 and standard deviation 1: for a model whose own are about to be loaded."""
        return cls(columns, (0.0,) * len(columns), (1.0,) * len(columns))


def describe_columns(table: pd.DataFrame, columns: tuple[str, ...]) -> Description:
    """Return ``known, unknown, mean, std, median`` of each column over the rows whose split is train.

    The standard deviation is that of the population, and exactly 0 where all known values are equal.

    Args:
        table: with the column ``split``; unknown values are NaN.
        columns: names of numeric columns.

    Raises:
        ValueError: if a column has no known value in the training split.
    """
    rows = table[table["split"] == "train"]
    return {name: _describe(name, rows[name].to_numpy(np.float64)) for name in columns}


def fit_statistics(table: pd.DataFrame, columns: tuple[str, ...]) -> ClinicalStatistics:
    """Return what normalises the columns, from the known values of the rows whose split is train.

    Raises:
        ValueError: if a column has no known value in the training split.
    """
    found = describe_columns(table, columns)
    mean = tuple(float(found[name]["mean"]) for name in columns)
    return ClinicalStatistics(
        columns, mean, tuple(float(found[name]["std"]) or 1.0 for name in columns)
    )


def drop_values(values: Tensor, probability: float, *, generator: Generator) -> Tensor:
    """Make each value unknown with a probability, independently per core and column: prompt dropout.

    One draw per core, not per sample: the G samples of a group are told the same, so that their rewards differ by their
    points alone.

    Args:
        values: [P, F], NaN where unknown.
        probability: in [0, 1].
        generator: on the CPU; F draws per core, known or not.

    Returns:
        [P, F], a new tensor.
    """
    is_dropped = torch.rand(values.shape, generator=generator) < probability
    return values.masked_fill(is_dropped.to(values.device), torch.nan)


def _describe(name: str, values: np.ndarray) -> dict[str, float | int]:
    known = values[~np.isnan(values)]
    if not known.size:
        raise ValueError(
            f"column {name!r} must have a known value in the training split, got none; "
            "fill it in or drop it from attention.data.columns.clinical"
        )
    # Equal values may differ from their mean by rounding, and would be divided by that.
    std = 0.0 if known.min() == known.max() else float(known.std())
    counts = {"known": int(known.size), "unknown": int(values.size - known.size)}
    return counts | {"mean": float(known.mean()), "std": std, "median": float(np.median(known))}


# Prompts: one token per column beside the tokens of the points.


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


def check_clinical(params: ModelParams, clinical: ClinicalStatistics | None) -> None:
    """Refuse statistics without the parameters of the prompts, and the other way round."""
    if (params.clinical is None) != (clinical is None):
        rule = "null" if clinical is None else "given"
        found = "none" if clinical is None else str(list(clinical.columns))
        raise ValueError(
            f"attention.model.clinical must be {rule} for a model with the clinical columns {found}, got {params.clinical}; "
            "map attention.data.columns.clinical and build the task with build_task, or switch it off"
        )
