import pandas as pd
import pytest
import torch

from grpo_pipeline.tasks.molecules.data.build_examples import build_examples
from grpo_pipeline.tasks.molecules.data.examples import compact, content_digest, put_together
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS

SMILES = ["CCO", "CC#N", "CC(=O)[O-]", "c1cc[nH]c1"]
VOCABULARY = {"atoms": ["C", "N", "O"], "charges": [0, -1], "bonds": list(BONDS), "max_atoms": 6}
SPLITS = {"train": ["CCO", "c1cc[nH]c1"], "val": ["CC#N"], "test": ["CC(=O)[O-]"]}


def tables():
    checked = pd.DataFrame({"smiles": SMILES, "name": "", "atoms": [3, 3, 4, 5], "lost_stereo": False, "row": [1, 2, 3, 4]})
    return checked, pd.DataFrame({"smiles": SMILES, "qed": 0.5, "logp": 1.0, "sa": 2.0})


def test_rows_of_the_table_own_the_graphs(monkeypatch):
    examples = build_examples(VOCABULARY, *tables(), SPLITS)
    assert examples.arrays["bonds"].shape == (4, 6, 6)
    assert {array.dtype for array in examples.arrays.values()} == {torch.uint8}
    for split, members in SPLITS.items():
        graphs = examples.graphs(examples.rows(split))
        assert sorted(molecule.smiles for molecule in decode(graphs, examples.vocabulary)) == sorted(members)
        assert examples.known(split) == {*members}
    assert graphs.atoms.dtype == torch.int64
    # The same in parts; the digest tells every change.
    monkeypatch.setattr("grpo_pipeline.tasks.molecules.data.build_examples.ROWS", 3)
    assert build_examples(VOCABULARY, *tables(), SPLITS).digest == examples.digest
    arrays = {name: array.clone() for name, array in examples.arrays.items()}
    assert put_together(examples.table, arrays, examples.vocabulary).digest == examples.digest
    arrays["atoms"][0, 0] = 1
    other = content_digest(examples.table, arrays, examples.vocabulary)
    moved = content_digest(examples.table.assign(split="train"), examples.arrays, examples.vocabulary)
    assert len({examples.digest, other, moved}) == 3


def test_what_does_not_belong_together_is_refused():
    checked, properties = tables()
    for val in ([], ["CC#N", "CCO"]):
        with pytest.raises(ValueError, match=r"molecules.splits must name every checked molecule once"):
            build_examples(VOCABULARY, checked, properties, {**SPLITS, "val": val})
    with pytest.raises(ValueError, match=r"molecules.properties must be of the checked molecules"):
        build_examples(VOCABULARY, checked, properties[::-1], SPLITS)
    with pytest.raises(ValueError, match="must be at most 255, got"):
        compact(MoleculeGraphs(*(torch.tensor(part) for part in ([[300]], [[0]], [[[0]]], [1]))))
