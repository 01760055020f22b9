"""Pay for drug-likeness, in [0, 1]: Bickerton et al., Nature Chemistry 4, 2012."""

from grpo_pipeline.tasks.molecules.graphs.descriptors import drug_likeness
from grpo_pipeline.tasks.molecules.rewards.reading import References, Texts, read_molecule


def qed(smiles: Texts, references: References) -> list[float]:
    """Compute the drug-likeness of each molecule; see ``descriptors.drug_likeness``."""
    return [drug_likeness(read_molecule(text)) for text in smiles]
