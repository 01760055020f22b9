"""Pay for wanted parts of a molecule."""

from grpo_pipeline.tasks.molecules.rewards.reading import (
    References,
    Texts,
    read_molecule,
    read_pattern,
)


def wanted(smiles: Texts, references: References, *, patterns: Texts) -> list[float]:
    """Compute the share of the SMARTS patterns that occur in each molecule."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        sum(molecule.HasSubstructMatch(one) for one in compiled) / len(compiled)
        for molecule in molecules
    ]
