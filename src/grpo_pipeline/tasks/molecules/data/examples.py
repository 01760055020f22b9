"""Hold the model input of the molecule task: graphs as compact classes, and the table of the molecules."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, read_vocabulary
from grpo_pipeline.tasks.stored_examples import Stored

ARRAYS = ("atoms", "charges", "bonds", "sizes")


@dataclass(frozen=True)
class MoleculeExamples:
    """Molecules with their splits; row i of the table owns entry i of the arrays.

    Attributes:
        table: ``smiles`` (canonical, unique), ``name``, ``atoms`` (heavy), ``lost_stereo``, ``row`` (line of the file),
            ``split``, ``qed``, ``logp``, ``sa``.
        arrays: the fields of ``MoleculeGraphs`` as uint8, padded to the vocabulary's ``max_atoms``.
        vocabulary: meaning of the classes.
        digest: digest of all fields.
    """

    table: pd.DataFrame
    arrays: Mapping[str, Tensor]
    vocabulary: Vocabulary
    digest: str

    def stored(self) -> Stored:
        """Split the examples into the parts that a dataset stores."""
        meta = {"digest": self.digest, "vocabulary": self.vocabulary.to_json()}
        return Stored(
            {"table": self.table},
            {name: array.numpy() for name, array in self.arrays.items()},
            meta,
        )

    @classmethod
    def restored(cls, stored: Stored) -> "MoleculeExamples":
        """Rebuild the examples from their stored parts, in memory; raises ValueError if the digest differs."""
        arrays = {name: torch.from_numpy(np.array(array)) for name, array in stored.arrays.items()}
        examples = put_together(
            stored.tables["table"], arrays, read_vocabulary(stored.meta["vocabulary"])
        )
        if examples.digest != stored.meta["digest"]:
            raise ValueError("another digest")
        return examples

    def graphs(self, rows: NDArray[np.int64] | Sequence[int]) -> MoleculeGraphs:
        """Select the graphs of these rows of the table, all with the same padding."""
        index = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        return MoleculeGraphs(*(self.arrays[name][index].long() for name in ARRAYS))

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return np.flatnonzero(self.table["split"].to_numpy() == split)

    def known(self, split: str = "train") -> frozenset[str]:
        """List the canonical SMILES of a split, which a novel molecule must not repeat."""
        return frozenset(self.table.loc[self.table["split"] == split, "smiles"])


def put_together(
    table: pd.DataFrame, arrays: Mapping[str, Tensor], vocabulary: Vocabulary
) -> MoleculeExamples:
    """Build the examples with their digest."""
    return MoleculeExamples(table, arrays, vocabulary, content_digest(table, arrays, vocabulary))


def with_table(examples: MoleculeExamples, table: pd.DataFrame) -> MoleculeExamples:
    """Replace the table of the examples, for another split."""
    return put_together(table, examples.arrays, examples.vocabulary)


def compact(graphs: MoleculeGraphs) -> dict[str, Tensor]:
    """Convert the fields to uint8.

    Raises:
        ValueError: if a class or size is above 255.
    """
    largest = {name: int(getattr(graphs, name).max()) for name in ARRAYS}
    if max(largest.values()) > 255:
        raise ValueError(
            f"classes and sizes must be at most 255, got {largest}; use a smaller vocabulary"
        )
    return {name: getattr(graphs, name).to(torch.uint8) for name in ARRAYS}


def content_digest(
    table: pd.DataFrame, arrays: Mapping[str, Tensor], vocabulary: Vocabulary
) -> str:
    """Compute a digest of cells, classes and vocabulary."""
    text = json.dumps(
        [table.to_dict(orient="records"), vocabulary.to_json()],
        ensure_ascii=False,
        sort_keys=True,
        default=int,
    )
    digest = hashlib.sha256(text.encode())
    for name in ARRAYS:
        digest.update(f"{name} {tuple(arrays[name].shape)}".encode())
        digest.update(arrays[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
