"""Pay for a logP in a window: Wildman and Crippen, J. Chem. Inf. Comput. Sci. 39, 1999."""

from grpo_pipeline.tasks.molecules.graphs.descriptors import partition_coefficient
from grpo_pipeline.tasks.molecules.rewards.reading import References, Texts, read_molecule
from grpo_pipeline.tasks.molecules.rewards.window import in_window


def logp(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Score logP by a window; see ``in_window`` and ``descriptors.partition_coefficient``."""
    return [
        in_window(partition_coefficient(read_molecule(text)), low=low, high=high, width=width)
        for text in smiles
    ]
