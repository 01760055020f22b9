"""Read SMILES and SMARTS; several terms of a reward process share what was read."""

from collections.abc import Sequence
from functools import lru_cache

from rdkit import Chem, rdBase

Texts = Sequence[str]
References = Sequence[Sequence[str]]


@lru_cache(maxsize=4096)
def read_molecule(smiles: str) -> Chem.Mol:
    """Parse a molecule; several rewards of a process share it.

    Raises:
        ValueError: if RDKit cannot read the SMILES.
    """
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise ValueError(
            f"a molecule must be a SMILES that RDKit reads, got {smiles!r}; reward valid molecules only"
        )
    return molecule


@lru_cache(maxsize=256)
def read_pattern(smarts: str) -> Chem.Mol:
    """Parse a SMARTS pattern.

    Raises:
        ValueError: for a SMARTS that RDKit does not read.
    """
    with rdBase.BlockLogs():
        pattern = Chem.MolFromSmarts(smarts)
    if pattern is None:
        raise ValueError(f"a pattern must be SMARTS that RDKit reads, got {smarts!r}; correct it")
    return pattern
