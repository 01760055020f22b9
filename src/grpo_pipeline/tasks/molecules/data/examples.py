"""The model input of the molecule task: graphs as compact classes, and what is known about each molecule."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.molecules.data.params import MoleculeSplitParams
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, read_vocabulary
from grpo_pipeline.tasks.shared import Stored

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

    def stored(self) -> Stored:
        """Return what a dataset keeps."""
        meta = {"digest": self.digest, "vocabulary": self.vocabulary.to_json()}
        return Stored(
            {"table": self.table},
            {name: array.numpy() for name, array in self.arrays.items()},
            meta,
        )

    @classmethod
    def restored(cls, stored: Stored) -> "MoleculeExamples":
        """Return the examples that were kept, in memory; raises ValueError where they are others."""
        arrays = {name: torch.from_numpy(np.array(array)) for name, array in stored.arrays.items()}
        examples = put_together(
            stored.tables["table"], arrays, read_vocabulary(stored.meta["vocabulary"])
        )
        if examples.digest != stored.meta["digest"]:
            raise ValueError("another digest")
        return examples

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


def put_together(
    table: pd.DataFrame, arrays: Mapping[str, Tensor], vocabulary: Vocabulary
) -> MoleculeExamples:
    """Return the examples with their digest."""
    return MoleculeExamples(table, arrays, vocabulary, content_digest(table, arrays, vocabulary))


def with_table(examples: MoleculeExamples, table: pd.DataFrame) -> MoleculeExamples:
    """Return the examples with another table, such as another split of them."""
    return put_together(table, examples.arrays, examples.vocabulary)


def compact(graphs: MoleculeGraphs) -> dict[str, Tensor]:
    """Return the fields as uint8.

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
    """Return a digest of cells, classes and vocabulary."""
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


# Divide the molecules into train, val and test, independent of the order of the file.

SPLITS = ("train", "val", "test")
Splits = dict[str, list[str]]


def split_molecules(checked: pd.DataFrame, params: MoleculeSplitParams) -> Splits:
    """Return the canonical SMILES of each split, sorted. One molecule, or one scaffold, is in one split.

    The scaffold is that of Bemis and Murcko (rings and what joins them); molecules without a ring share the scaffold "".

    Raises:
        ValueError: if a split holds nothing.
    """
    names = list(checked["smiles"])
    groups = names if params.by == "smiles" else [scaffold_of(smiles) for smiles in names]
    drawn = deal(Counter(groups), vars(params.fractions), seed=params.seed)
    splits = {
        split: sorted(
            name for name, group in zip(names, groups, strict=True) if drawn[group] == split
        )
        for split in SPLITS
    }
    for split, members in splits.items():
        if not members:
            raise ValueError(
                f"split {split!r} must hold molecules, got none; change molecules.split.fractions or by, or add molecules"
            )
    return splits


def scaffold_of(smiles: str) -> str:
    """Return the Bemis-Murcko scaffold of a molecule, "" for one without a ring. Source: J. Med. Chem. 1996, 39, 2887."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    return str(MurckoScaffold.MurckoScaffoldSmiles(smiles=smiles))


def deal(sizes: Mapping[str, int], fractions: Mapping[str, float], *, seed: int) -> dict[str, str]:
    """Return group -> split: the largest groups first, equal ones in random order, each to the split that lacks most.

        split of the next group = argmax_s fractions[s] * n - (molecules in s so far),   ties: the first of ``SPLITS``

    Groups of one size, as single molecules, are cut at the shares instead: a random permutation, split s holding the places
    up to round(n * sum_{t <= s} f[t]).
    """
    names = sorted(sizes)
    shuffled = [
        names[place] for place in numpy_generator(seed, Stream.SPLIT).permutation(len(names))
    ]
    if len({*sizes.values()}) == 1:
        return _cut(shuffled, fractions)
    lacking = {split: fractions[split] * sum(sizes.values()) for split in SPLITS}
    dealt = {}
    for name in sorted(shuffled, key=lambda name: -sizes[name]):
        split = max(SPLITS, key=lambda split: lacking[split])
        dealt[name] = split
        lacking[split] -= sizes[name]
    return dealt


def _cut(names: Sequence[str], fractions: Mapping[str, float]) -> dict[str, str]:
    ends = np.rint(len(names) * np.cumsum([fractions[split] for split in SPLITS])).astype(int)
    part = np.searchsorted(ends, np.arange(len(names)), side="right")
    return {name: SPLITS[place] for name, place in zip(names, part, strict=True)}
