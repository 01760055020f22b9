"""Divide the molecules into train, val and test, independent of the order of the file."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.molecules.data.params import MoleculeSplitParams

SPLITS = ("train", "val", "test")
Splits = dict[str, list[str]]


def split_molecules(checked: pd.DataFrame, params: MoleculeSplitParams) -> Splits:
    """Divide the canonical SMILES into splits, each sorted. A molecule, or a scaffold, is in a single split.

    The scaffold is that of Bemis and Murcko (rings and the chains between them); molecules without a ring share the scaffold "".

    Raises:
        ValueError: if a split is empty.
    """
    names = list(checked["smiles"])
    groups = names if params.by == "smiles" else [scaffold_of(smiles) for smiles in names]
    drawn = deal(Counter(groups), vars(params.fractions), seed=params.seed)
    splits = {
        split: sorted(
            name for name, group in zip(names, groups, strict=True) if drawn[group] == split
        )
        for split in SPLITS
    }
    for split, members in splits.items():
        if not members:
            raise ValueError(
                f"split {split!r} must hold molecules, got none; change molecules.split.fractions or by, or add molecules"
            )
    return splits


def scaffold_of(smiles: str) -> str:
    """Compute the Bemis-Murcko scaffold of a molecule, "" without rings. Source: J. Med. Chem. 1996, 39, 2887."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    return str(MurckoScaffold.MurckoScaffoldSmiles(smiles=smiles))


def deal(sizes: Mapping[str, int], fractions: Mapping[str, float], *, seed: int) -> dict[str, str]:
    """Deal groups to splits, the largest first, equal ones in random order, each to the split that lacks most.

        split of the next group = argmax_s fractions[s] * n - (molecules in s so far),   ties: the first of ``SPLITS``

    If all groups have the same size, such as single molecules, a random permutation is cut at the shares instead. Split s then
    holds the places up to round(n * sum_{t <= s} f[t]).
    """
    names = sorted(sizes)
    shuffled = [
        names[place] for place in numpy_generator(seed, Stream.SPLIT).permutation(len(names))
    ]
    if len({*sizes.values()}) == 1:
        return _cut(shuffled, fractions)
    lacking = {split: fractions[split] * sum(sizes.values()) for split in SPLITS}
    dealt = {}
    for name in sorted(shuffled, key=lambda name: -sizes[name]):
        split = max(SPLITS, key=lambda split: lacking[split])
        dealt[name] = split
        lacking[split] -= sizes[name]
    return dealt


def _cut(names: Sequence[str], fractions: Mapping[str, float]) -> dict[str, str]:
    ends = np.rint(len(names) * np.cumsum([fractions[split] for split in SPLITS])).astype(int)
    part = np.searchsorted(ends, np.arange(len(names)), side="right")
    return {name: SPLITS[place] for name, place in zip(names, part, strict=True)}
