import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from grpo_pipeline.tasks.molecules.data.params import MoleculeSplitParams
from grpo_pipeline.tasks.molecules.data.splits import SPLITS, deal, split_molecules

RINGS = ("c1ccccc1", "C1CCCC1", "C1CCNC1", "c1ccncc1", "C1CC1", "c1ccoc1")
TAILS = ("C", "CC", "CCC", "CO", "CCO", "CCN", "C=C")
IN_RINGS = [Chem.CanonSmiles(tail + ring) for ring in RINGS for tail in TAILS]
MOLECULES = IN_RINGS + ["C" * length for length in range(2, 30)]


def split(smiles=MOLECULES, *, by="smiles", seed=0):
    fractions = {"train": 0.6, "val": 0.2, "test": 0.2}
    params = MoleculeSplitParams.model_validate({"seed": seed, "by": by, "fractions": fractions})
    return split_molecules(pd.DataFrame({"smiles": smiles}), params)


@pytest.mark.parametrize("by", ["smiles", "scaffold"])
def test_every_molecule_is_in_one_split_whatever_the_order(by):
    parts = split(by=by)
    assert sorted(name for members in parts.values() for name in members) == sorted(MOLECULES)
    assert split(MOLECULES[::-1], by=by) == parts
    assert split(by=by, seed=1) != parts


def test_shares_are_exact_none_is_empty_and_scaffolds_are_not_divided():
    assert [len(split()[name]) for name in SPLITS] == [42, 14, 14]
    with pytest.raises(ValueError, match=r"split 'val' must hold molecules, got none; change molecules.split.fractions"):
        split(["CC", "CCC"], by="scaffold")
    scaffolds = {}
    for name, members in split(by="scaffold").items():
        scaffolds[name] = {MurckoScaffold.MurckoScaffoldSmiles(smiles=smiles) for smiles in members}
    assert sum(map(len, scaffolds.values())) == len(set().union(*scaffolds.values())) == 7
    assert "" in scaffolds["train"]


def test_large_groups_go_where_most_is_lacking():
    """Of 20: 12, 4 and 4 are wanted. 9 to train (3 left), 4 to val (0), 3 to test (1), 2 to train (1), 1 to train, 1 to test."""
    groups = {"a": 9, "b": 4, "c": 3, "d": 2, "e": 1, "f": 1}
    dealt = deal(groups, {"train": 0.6, "val": 0.2, "test": 0.2}, seed=0)
    sizes = {split: sum(size for name, size in groups.items() if dealt[name] == split) for split in SPLITS}
    assert [dealt[name] for name in "abcd"] == ["train", "val", "test", "train"]
    assert sizes == {"train": 12, "val": 4, "test": 4}
