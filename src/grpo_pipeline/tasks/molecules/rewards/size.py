"""Pay for a number of heavy atoms in a window."""

from grpo_pipeline.tasks.molecules.rewards.reading import References, Texts, read_molecule
from grpo_pipeline.tasks.molecules.rewards.window import in_window


def size(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Score the number of heavy atoms by a window; see ``in_window``."""
    return [
        in_window(read_molecule(text).GetNumAtoms(), low=low, high=high, width=width)
        for text in smiles
    ]
