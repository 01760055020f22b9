import pytest
from rdkit import Chem

from grpo_pipeline.tasks.molecules.data.readers import standardise
from grpo_pipeline.tasks.tabular.text_lines import RowError


def of(smiles):
    return standardise(Chem.MolFromSmiles(smiles, sanitize=False))


@pytest.mark.parametrize(
    ("smiles", "wanted", "lost_stereo"),
    [
        ("OCC", "CCO", False),
        ("C1=CC=CN1", "c1cc[nH]c1", False),
        ("C[C@H](N)C(=O)O", "CC(N)C(=O)O", True),
        ("C/C=C/C", "CC=CC", True),
        ("[H]C([H])([H])O[H]", "CO", False),
        ("[CH3:7]O", "CO", False),
        ("CC(=O)[O-]", "CC(=O)[O-]", False),
    ],
)
def test_one_form(smiles, wanted, lost_stereo):
    found = of(smiles)
    assert (found.smiles, found.lost_stereo) == (wanted, lost_stereo)
    assert Chem.MolToSmiles(found.molecule) == wanted


def test_texts_of_one_molecule_give_one_form():
    molecule = Chem.MolFromSmiles("Cc1c[nH]c(CC(F)N)n1")
    texts = {Chem.MolToSmiles(molecule, doRandom=True) for _ in range(20)}
    assert len(texts) > 5
    assert {of(text).smiles for text in texts} == {Chem.MolToSmiles(molecule)}


@pytest.mark.parametrize(
    ("smiles", "message"),
    [
        ("C[N](C)(C)C", "possible valences and rings, got 'Explicit valence for atom # 1 N, 4"),
        ("c1cccc1", "got .*Can't kekulize"),
        ("C*", r"every atom must be of an element, got a dummy as atom 1"),
        ("[13CH3]O", "cannot hold an isotope, got mass 13 for atom 0"),
        ("C[CH2]", "cannot hold a radical, got 1 unpaired electrons on atom 1"),
        ("[Na+].[Cl-]", "must be in one part, got 2"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(smiles, message):
    with pytest.raises(RowError, match=message):
        of(smiles)
