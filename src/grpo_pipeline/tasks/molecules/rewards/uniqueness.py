"""Pay for a molecule that no other sample is: of its group, or of all groups that are scored together.

Groups of the same size repeat each other, which a comparison with the own group alone does not see. For the evidence see
docs/decisions/0034-uniqueness-is-paid-in-the-batch.md.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def unique_in_group(smiles: Sequence[Sequence[str]]) -> Tensor:
    """Score 1 for a molecule that occurs once in its group, else 0, float64 [P, G].

        u[p, g] = |{m[p, :]}| - |{m[p, :] without g}|   =   1 if no other sample of the group is the same molecule, else 0

    A bonus for the whole group would be the same for all its samples and cancel in their comparison.
    """
    # codes: of all P * G molecules, one after the other.
    kinds, codes = np.unique(np.asarray(smiles, dtype=np.str_), return_inverse=True)
    # A separate code for each molecule and group, [P, G], so that a single count serves all groups.
    places = codes.reshape(len(smiles), -1) + len(kinds) * np.arange(len(smiles))[:, None]
    return torch.from_numpy((np.bincount(places.ravel())[places] == 1).astype(np.float64))


def unique_in_batch(smiles: Sequence[Sequence[str]]) -> Tensor:
    """Score 1 for a molecule that occurs once in all groups, else 0; float64 [P, G]."""
    return unique_in_group([[text for group in smiles for text in group]]).reshape(len(smiles), -1)
