"""Reward single molecules by their properties, each in [0, 1].

``(smiles, references, **options) -> one number per molecule``.

They run in reward processes and get canonical SMILES of valid molecules; the references are not read.
"""

from collections.abc import Sequence
from functools import lru_cache

from rdkit import Chem, rdBase

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.tasks.molecules.graphs.accessibility import (
    EASIEST,
    HARDEST,
    accessibility_score,
    read_fragments,
)
from grpo_pipeline.tasks.molecules.graphs.properties import drug_likeness, partition_coefficient

Texts = Sequence[str]
References = Sequence[Sequence[str]]


def qed(smiles: Texts, references: References) -> list[float]:
    """Compute the drug-likeness of each molecule; see ``properties.drug_likeness``."""
    return [drug_likeness(read_molecule(text)) for text in smiles]


def logp(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Score logP by a window; see ``in_window`` and ``properties.partition_coefficient``."""
    return [
        in_window(partition_coefficient(read_molecule(text)), low=low, high=high, width=width)
        for text in smiles
    ]


def size(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Score the number of heavy atoms by a window; see ``in_window``."""
    return [
        in_window(read_molecule(text).GetNumAtoms(), low=low, high=high, width=width)
        for text in smiles
    ]


@prepared_by(read_fragments)
def accessibility(smiles: Texts, references: References) -> list[float]:
    """Compute (10 - score) / 9: 1 for the easiest molecules to make, 0 for the hardest; see ``accessibility_score``."""
    return [
        (HARDEST - accessibility_score(read_molecule(text))) / (HARDEST - EASIEST)
        for text in smiles
    ]


def wanted(smiles: Texts, references: References, *, patterns: Sequence[str]) -> list[float]:
    """Compute the share of the SMARTS patterns that occur in each molecule."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        sum(molecule.HasSubstructMatch(one) for one in compiled) / len(compiled)
        for molecule in molecules
    ]


def forbidden(smiles: Texts, references: References, *, patterns: Sequence[str]) -> list[float]:
    """Score 1 for each molecule without any of the SMARTS patterns, else 0."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        float(not any(molecule.HasSubstructMatch(one) for one in compiled))
        for molecule in molecules
    ]


def in_window(value: float, *, low: float, high: float, width: float) -> float:
    """Score a value: 1 inside a window, falling linearly to 0 over ``width`` on both sides.

    max(0, 1 - max(low - value, value - high, 0) / width)
    """
    return max(0.0, 1.0 - max(low - value, value - high, 0.0) / width)


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
