"""The model input of the molecule task: graphs as compact classes, and what is known about each molecule."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.encoding import Sketch, encode, sketch_molecule
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.properties import PROPERTIES
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BondForm, Vocabulary, read_vocabulary

ARRAYS = ("atoms", "charges", "bonds", "sizes")


@dataclass(frozen=True)
class MoleculeExamples:
    """Molecules with their splits; row i of the table owns entry i of the arrays.

    Attributes:
        table: ``smiles`` (canonical, unique), ``name``, ``atoms`` (heavy), ``lost_stereo``, ``row`` (line of the file),
            ``split``, ``qed``, ``logp``, ``sa``.
        arrays: the fields of ``MoleculeGraphs`` as uint8, padded to the vocabulary's ``max_atoms``.
        vocabulary: what the classes mean.
        digest: of all of it.
    """

    table: pd.DataFrame
    arrays: Mapping[str, Tensor]
    vocabulary: Vocabulary
    digest: str

    def graphs(self, rows: NDArray[np.int64] | Sequence[int]) -> MoleculeGraphs:
        """Return the graphs of these rows of the table, all padded alike."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        return MoleculeGraphs(*(self.arrays[name][index].long() for name in ARRAYS))

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return np.flatnonzero(self.table["split"].to_numpy() == split)

    def known(self, split: str = "train") -> frozenset[str]:
        """Return the canonical SMILES of a split: what a new molecule must not be."""
        return frozenset(self.table.loc[self.table["split"] == split, "smiles"])


def put_together(table: pd.DataFrame, arrays: Mapping[str, Tensor], vocabulary: Vocabulary) -> MoleculeExamples:
    """Return the examples with their digest."""
    return MoleculeExamples(table, arrays, vocabulary, content_digest(table, arrays, vocabulary))


def compact(graphs: MoleculeGraphs) -> dict[str, Tensor]:
    """Return the fields as uint8.

    Raises:
        ValueError: if a class or size is above 255.
    """
    largest = {name: int(getattr(graphs, name).max()) for name in ARRAYS}
    if max(largest.values()) > 255:
        raise ValueError(f"classes and sizes must be at most 255, got {largest}; use a smaller vocabulary")
    return {name: getattr(graphs, name).to(torch.uint8) for name in ARRAYS}


def content_digest(table: pd.DataFrame, arrays: Mapping[str, Tensor], vocabulary: Vocabulary) -> str:
    """Return a digest of cells, classes and vocabulary."""
    text = json.dumps([table.to_dict(orient="records"), vocabulary.to_json()], ensure_ascii=False, sort_keys=True, default=int)
    digest = hashlib.sha256(text.encode())
    for name in ARRAYS:
        digest.update(f"{name} {tuple(arrays[name].shape)}".encode())
        digest.update(arrays[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


# Checked molecules, properties and splits -> model input.

TABLE_COLUMNS = ("smiles", "name", "atoms", "lost_stereo", "row", "split", *PROPERTIES)
ROWS = 1024
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
    arrays = encode_compactly(list(checked["smiles"]), known)
    table = checked.assign(split=checked["smiles"].map(split_of), **{name: properties[name] for name in PROPERTIES})
    return put_together(table[list(TABLE_COLUMNS)], arrays, known)


def encode_compactly(smiles: Sequence[str], vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Return the graphs of canonical SMILES as uint8; only ``ROWS`` of them are wide integers at a time."""
    parts = [
        compact(encode(sketch_all(smiles[start : start + ROWS], vocabulary.form), vocabulary, nodes=vocabulary.max_atoms))
        for start in range(0, len(smiles), ROWS)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in ARRAYS}


def sketch_all(smiles: Sequence[str], form: BondForm) -> list[Sketch]:
    """Return the graphs of canonical SMILES, nodes in the order of the text."""
    with rdBase.BlockLogs():
        return [sketch_molecule(Chem.MolFromSmiles(text), form) for text in smiles]
