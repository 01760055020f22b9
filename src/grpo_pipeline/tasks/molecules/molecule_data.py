"""Hold the data of a run: the examples, and the properties that prompts name beside the size."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.graphs.property_scales import PropertyScales
from grpo_pipeline.tasks.molecules.params import GraphPromptParams

ROWS = 1024  # graphs that are wide integers at a time
# Number of training molecules that distances compare with. More than the samples add no precision, and each arm writes them.
COMPARED_WITH = 10_000


@dataclass(frozen=True)
class MoleculeData:
    """Molecules of all splits; row i of the examples' table owns row i here.

    Attributes:
        examples: the molecules.
        targets: properties that prompts name, float64 [n, F], in their own units.
        conditions: the targets scaled for the network, float32 [n, F]: 0 is the training mean, 1 a standard deviation more.
        scales: the scales from targets to conditions.
    """

    examples: MoleculeExamples
    targets: NDArray[np.float64]
    conditions: Tensor
    scales: PropertyScales

    @cached_property
    def training_rows(self) -> pd.DataFrame:
        """Tabulate the training molecules by ``tabulate_molecules``, for comparison with samples.

        At most ``COMPARED_WITH`` molecules are drawn, always the same ones.
        """
        examples = self.examples
        drawn = numpy_generator(0, Stream.COMPARED_ROWS).permutation(examples.rows("train"))
        rows, known = np.sort(drawn[:COMPARED_WITH]), examples.known()
        parts = map(examples.graphs, np.array_split(rows, range(ROWS, len(rows), ROWS)))
        tables = [
            tabulate_molecules(
                graphs, decode(graphs, examples.vocabulary), examples.vocabulary, known
            )
            for graphs in parts
        ]
        return pd.concat(tables, ignore_index=True)


def attach_conditions(examples: MoleculeExamples, prompt: GraphPromptParams) -> MoleculeData:
    """Add the conditions of every prompt: its properties in the units of ``PropertyScales``.

    Raises:
        ValueError: if there is no training molecule.
    """
    train = examples.rows("train")
    if not len(train):
        raise ValueError(
            "molecules.split must leave at least one training molecule, got none; raise fractions.train"
        )
    targets = examples.table[list(prompt.conditions)].to_numpy(np.float64)
    scales = PropertyScales.fit(prompt.conditions, targets[train])
    return MoleculeData(examples, targets, scales.scale(targets), scales)
