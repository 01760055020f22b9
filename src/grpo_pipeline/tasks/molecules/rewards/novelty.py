"""Pay for a molecule that is not in the training split."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor


def novelty(smiles: Sequence[Sequence[str]], known: Collection[str]) -> Tensor:
    """Score 1 for a molecule that is not among the known ones, else 0; float64 [P, G]."""
    return torch.tensor(
        [[float(text not in known) for text in group] for group in smiles], dtype=torch.float64
    )
