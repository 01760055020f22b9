import pytest
from rdkit import Chem
from rdkit.Chem import QED, Crippen
from tiny_molecules import SMILES, canonical

from grpo_pipeline.tasks.molecules.graphs import properties as rewards
from grpo_pipeline.tasks.molecules.graphs.properties import accessibility_score

TEXTS = [canonical(smiles) for smiles in SMILES]
NONE = [[] for _ in TEXTS]


def test_values_are_rdkits_on_the_scale_of_a_reward():
    molecules = [Chem.MolFromSmiles(text) for text in TEXTS]
    assert rewards.qed(TEXTS, NONE) == [QED.qed(molecule) for molecule in molecules]
    easy = rewards.accessibility(TEXTS, NONE)
    assert easy == [(10 - accessibility_score(molecule)) / 9 for molecule in molecules]
    assert all(0 <= value <= 1 for value in easy)
    window = {"low": 1.0, "high": 2.0, "width": 0.5}
    inside = [1.0 <= Crippen.MolLogP(molecule) <= 2.0 for molecule in molecules]
    assert [value == 1.0 for value in rewards.logp(TEXTS, NONE, **window)] == inside
    assert 0 < sum(inside) < len(inside)


def test_a_window_falls_linearly_on_both_sides():
    values = [rewards.in_window(value, low=1.0, high=3.0, width=2.0) for value in (-1.5, -1.0, 0.0, 1.0, 2.0, 3.0, 3.5, 5.0, 9.0)]
    assert values == [0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.0, 0.0]


def test_size_counts_heavy_atoms():
    assert rewards.size(["CO", "CC[NH3+]", "c1ccccc1"], [[]] * 3, low=3, high=4, width=4) == [0.75, 1.0, 0.5]


def test_patterns():
    texts = ["CCO", "CC(=O)O", "c1ccccc1", "OCc1ccccc1"]
    assert rewards.wanted(texts, [[]] * 4, patterns=["[OH]", "c1ccccc1"]) == [0.5, 0.5, 0.5, 1.0]
    assert rewards.forbidden(texts, [[]] * 4, patterns=["C=O", "c1ccccc1"]) == [1.0, 0.0, 0.0, 0.0]


def test_what_cannot_be_read_has_no_reward():
    with pytest.raises(ValueError, match="must be a SMILES that RDKit reads, got 'C\\(C'"):
        rewards.qed(["C(C"], [[]])
    with pytest.raises(ValueError, match="must be SMARTS that RDKit reads, got '\\[X'"):
        rewards.wanted(["CC"], [[]], patterns=["[X"])
