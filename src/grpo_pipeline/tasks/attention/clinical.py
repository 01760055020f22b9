"""Clinical values: scaled by the training split, dropped at random in training, and read as prompt tokens.

An unknown value stays unknown (NaN) up to the model, which has a token of its own for it. After ProstNFound (Wilson et al.
2024), whose SAM reads age and PSA as prompts. How this differs: an unknown value is not imputed; known values are dropped to it
in training (``drop_values``).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

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
