"""Scale properties of a prompt to the units of the network's inputs.

c = (property - mean) / spread          over the training split; 0 where the spread is 0
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class PropertyScales:
    """Mean and standard deviation of each property over the training split.

    Attributes:
        names: names of the properties, in the order of the prompt.
        mean: mean of each property, in its own unit.
        spread: standard deviation of each property; 0 where all training molecules have the same value.
    """

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    @classmethod
    def fit(cls, names: Sequence[str], values: NDArray[np.float64]) -> Self:
        """Fit the scales to the training molecules' properties, [n, F]."""
        return cls(
            tuple(names), tuple(values.mean(axis=0).tolist()), tuple(values.std(axis=0).tolist())
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, float]]) -> Self:
        """Read the scales that ``to_json`` wrote."""
        return cls(
            tuple(values),
            *(tuple(float(v[key]) for v in values.values()) for key in ("mean", "spread")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return property -> {mean, spread}."""
        each = zip(self.names, self.mean, self.spread, strict=True)
        return {name: {"mean": mean, "spread": spread} for name, mean, spread in each}

    def scale(self, values: NDArray[np.float64]) -> Tensor:
        """Return properties [P, F] as the network is told them, float32."""
        spread = np.array(self.spread)
        return torch.as_tensor(
            (values - np.array(self.mean)) / np.where(spread > 0, spread, 1.0), dtype=torch.float32
        )

    def apply(self, targets: Mapping[str, Sequence[float]], *, rows: int) -> Tensor:
        """Scale named targets for the network, float32 [rows, F].

        Raises:
            ValueError: if other properties are named, or their numbers of values differ from ``rows``.
        """
        found = {name: len(values) for name, values in targets.items()}
        if found != dict.fromkeys(self.names, rows):
            wanted = (
                f"{list(self.names)} with {rows} values each"
                if self.names
                else "empty: its prompts name no property"
            )
            raise ValueError(
                f"targets must be {wanted}, got {found}; name what the model was trained with"
            )
        columns = [np.asarray(targets[name], dtype=np.float64) for name in self.names]
        return self.scale(np.stack(columns, axis=1) if columns else np.zeros((rows, 0)))
