"""Checked molecules, properties and splits -> model input."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rdkit import Chem, rdBase

from grpo_pipeline.tasks.molecules.encoding import encode
from grpo_pipeline.tasks.molecules.examples import MoleculeExamples, compact, put_together
from grpo_pipeline.tasks.molecules.properties import PROPERTIES
from grpo_pipeline.tasks.molecules.sketch import Sketch, sketch_molecule
from grpo_pipeline.tasks.molecules.vocabulary import BondForm, read_vocabulary

TABLE_COLUMNS = ("smiles", "name", "atoms", "lost_stereo", "row", "split", *PROPERTIES)
AGAIN = "run the pipeline molecules_data again"


def build_examples(
    vocabulary: Mapping[str, Any], checked: pd.DataFrame, properties: pd.DataFrame, splits: Mapping[str, Sequence[str]]
) -> MoleculeExamples:
    """Put graphs, properties and splits together, by canonical SMILES; the order is that of ``checked``.

    Raises:
        ValueError: if properties or splits are of other molecules, or one is in two splits.
    """
    split_of = {smiles: split for split, members in splits.items() for smiles in members}
    if split_of.keys() != {*checked["smiles"]} or sum(map(len, splits.values())) != len(split_of):
        raise ValueError(f"molecules.splits must name every checked molecule once, got others; {AGAIN}")
    if list(properties["smiles"]) != list(checked["smiles"]):
        raise ValueError(f"molecules.properties must be of the checked molecules, got others; {AGAIN}")
    known = read_vocabulary(vocabulary)
    graphs = encode(sketch_all(list(checked["smiles"]), known.form), known, nodes=known.max_atoms)
    table = checked.assign(split=checked["smiles"].map(split_of), **{name: properties[name] for name in PROPERTIES})
    return put_together(table[list(TABLE_COLUMNS)], compact(graphs), known)


def sketch_all(smiles: Sequence[str], form: BondForm) -> list[Sketch]:
    """Return the graphs of canonical SMILES, nodes in the order of the text."""
    with rdBase.BlockLogs():
        return [sketch_molecule(Chem.MolFromSmiles(text), form) for text in smiles]
