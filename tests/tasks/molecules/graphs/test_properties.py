import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import QED, Crippen

from grpo_pipeline.tasks.molecules.graphs.properties import EASIEST, HARDEST, accessibility_score, tabulate_properties

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def test_properties_are_rdkits():
    smiles = [ASPIRIN, "CCO", "c1cc[nH]c1"]
    table = tabulate_properties(smiles)
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    assert list(table["smiles"]) == smiles
    np.testing.assert_array_equal(table["qed"], [QED.qed(molecule) for molecule in molecules])
    np.testing.assert_array_equal(table["logp"], [Crippen.MolLogP(molecule) for molecule in molecules])
    assert tabulate_properties([]).shape == (0, 4)


def test_cages_are_harder_to_make_than_drugs():
    easy, hard = (accessibility_score(Chem.MolFromSmiles(text)) for text in (ASPIRIN, "C12C3C4C1C5C2C3C45"))
    # The value that the authors of the scorer give for aspirin's SMILES is 1.58 (their own program: 1.6).
    assert easy == pytest.approx(1.58, abs=0.01)
    assert EASIEST <= easy < 3 < hard <= HARDEST
    with pytest.raises(ValueError, match="must have atoms to be scored"):
        accessibility_score(Chem.Mol())
