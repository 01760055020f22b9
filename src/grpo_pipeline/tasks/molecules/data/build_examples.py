"""Join checked molecules, properties and splits into the model input; needs RDKit, which ``examples`` does not."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from rdkit import Chem, rdBase
from torch import Tensor

from grpo_pipeline.tasks.molecules.data.examples import (
    ARRAYS,
    MoleculeExamples,
    compact,
    put_together,
)
from grpo_pipeline.tasks.molecules.graphs.encoding import encode
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import parse_molecule
from grpo_pipeline.tasks.molecules.graphs.properties import PROPERTIES
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, read_vocabulary

TABLE_COLUMNS = ("smiles", "name", "atoms", "lost_stereo", "row", "split", *PROPERTIES)
ROWS = 1024
AGAIN = "run the pipeline molecules_data again"


def build_examples(
    vocabulary: Mapping[str, Any],
    checked: pd.DataFrame,
    properties: pd.DataFrame,
    splits: Mapping[str, Sequence[str]],
) -> MoleculeExamples:
    """Join graphs, properties and splits by canonical SMILES, in the order of ``checked``.

    Raises:
        ValueError: if properties or splits belong to other molecules, or a molecule is in two splits.
    """
    split_of = {smiles: split for split, members in splits.items() for smiles in members}
    if split_of.keys() != {*checked["smiles"]} or sum(map(len, splits.values())) != len(split_of):
        raise ValueError(
            f"molecules.splits must name every checked molecule once, got others; {AGAIN}"
        )
    if list(properties["smiles"]) != list(checked["smiles"]):
        raise ValueError(
            f"molecules.properties must be of the checked molecules, got others; {AGAIN}"
        )
    known = read_vocabulary(vocabulary)
    arrays = encode_compactly(list(checked["smiles"]), known)
    table = checked.assign(
        split=checked["smiles"].map(split_of), **{name: properties[name] for name in PROPERTIES}
    )
    return put_together(table[list(TABLE_COLUMNS)], arrays, known)


def encode_compactly(smiles: Sequence[str], vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Encode canonical SMILES as graphs in uint8; only ``ROWS`` of them are wide integers at a time."""
    parts = []
    for start in range(0, len(smiles), ROWS):
        with rdBase.BlockLogs():
            molecules = [Chem.MolFromSmiles(text) for text in smiles[start : start + ROWS]]
        #
        parsed = [parse_molecule(molecule, vocabulary.form) for molecule in molecules]
        parts.append(compact(encode(parsed, vocabulary, nodes=vocabulary.max_atoms)))
    return {name: torch.cat([part[name] for part in parts]) for name in ARRAYS}
