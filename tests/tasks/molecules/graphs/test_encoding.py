import pytest
import torch
from tiny_molecules import SMILES, sketch, vocabulary

from grpo_pipeline.tasks.molecules.graphs.encoding import Sketch, check_covered, encode, read_sketches
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.tabular.text_lines import RowError


def test_classes_of_acetate():
    """CC(=O)[O-]: C-C single, C=O double, C-O single; O is class 2, charge -1 is class 1."""
    graphs = encode([sketch("CC(=O)[O-]"), sketch("CO")], vocabulary())
    assert graphs.atoms.tolist() == [[0, 0, 2, 2], [0, 2, 0, 0]]
    assert graphs.charges.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert graphs.bonds[0].tolist() == [[0, 1, 0, 0], [1, 0, 2, 1], [0, 2, 0, 0], [0, 1, 0, 0]]
    assert graphs.sizes.tolist() == [4, 2]


@pytest.mark.parametrize("form", ["kekulised", "aromatic"])
def test_sketches_come_back(form):
    sketches = [sketch(smiles, form) for smiles in SMILES]
    known = vocabulary(form)
    assert list(read_sketches(encode(sketches, known), known)) == sketches
    assert list(read_sketches(encode(sketches, known, nodes=20), known)) == sketches
    assert encode(sketches, known, nodes=20).atoms.shape == (len(SMILES), 20)


def test_aromatic_atoms_with_a_hydrogen_are_a_class():
    assert sketch("Cc1c[nH]cn1", "aromatic").atoms == ("C", "C", "C", "[nH]", "C", "N")
    assert sketch("Cc1c[nH]cn1", "kekulised").atoms == ("C", "C", "C", "N", "C", "N")
    assert {kind for _, _, kind in sketch("c1ccccc1", "aromatic").bonds} == {"aromatic"}
    assert sorted(kind for _, _, kind in sketch("c1ccccc1").bonds) == ["double"] * 3 + ["single"] * 3


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (sketch("C[Si](C)C"), r"atoms must be among .* got \['Si'\]; widen molecules.data"),
        (sketch("[Mg+2]"), r"atoms must be among .* got \['Mg'\]"),
        (Sketch(("C",), (2,), ()), r"charges must be among \[0, -1, 1\], got \[2\]"),
        (sketch("c1ccccc1", "aromatic"), r"bonds must be among .* got \['aromatic'\]"),
        (sketch("C" * 13), "at most 12 heavy atoms, got 13"),
    ],
)
def test_what_has_no_class_is_refused(found, message):
    with pytest.raises(RowError, match=message):
        check_covered(found, vocabulary())
    with pytest.raises(RowError, match=message):
        encode([found], vocabulary())


def test_unknown_classes_and_no_molecules_are_refused():
    strange = MoleculeGraphs(*(torch.tensor(part) for part in ([[9, 0]], [[0, 0]], [[[0, 1], [1, 0]]], [2])))
    with pytest.raises(ValueError, match="atoms must be classes below 9, got 9"):
        list(read_sketches(strange, vocabulary()))
    with pytest.raises(ValueError, match="at least one molecule, got none"):
        encode([], vocabulary())
