"""Pay for a molecule that is easy to make: Ertl and Schuffenhauer, J. Cheminformatics 1, 2009."""

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.tasks.molecules.graphs.accessibility import (
    EASIEST,
    HARDEST,
    accessibility_score,
    read_fragments,
)
from grpo_pipeline.tasks.molecules.rewards.reading import References, Texts, read_molecule


@prepared_by(read_fragments)
def accessibility(smiles: Texts, references: References) -> list[float]:
    """Compute (10 - score) / 9: 1 for the easiest molecules to make, 0 for the hardest; see ``accessibility_score``."""
    return [
        (HARDEST - accessibility_score(read_molecule(text))) / (HARDEST - EASIEST)
        for text in smiles
    ]
