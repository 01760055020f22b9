"""Pay for a molecule without forbidden parts."""

from grpo_pipeline.tasks.molecules.rewards.reading import (
    References,
    Texts,
    read_molecule,
    read_pattern,
)


def forbidden(smiles: Texts, references: References, *, patterns: Texts) -> list[float]:
    """Score 1 for each molecule without any of the SMARTS patterns, else 0."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        float(not any(molecule.HasSubstructMatch(one) for one in compiled))
        for molecule in molecules
    ]
