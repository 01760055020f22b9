import networkx as nx
import pytest
import torch
from rdkit import Chem
from tiny_molecules import SMILES, canonical, sketch, vocabulary

from grpo_pipeline.tasks.molecules.graphs.encoding import (
    Sketch,
    build_molecule,
    decode,
    decode_sketch,
    encode,
    sanitise,
    sketch_molecule,
)
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs


@pytest.mark.parametrize("form", ["kekulised", "aromatic"])
@pytest.mark.parametrize("smiles", SMILES)
def test_graph_to_molecule_to_graph_is_exact(smiles, form):
    graph = sketch(canonical(smiles), form)
    decoded = decode_sketch(graph)
    assert decoded.smiles == decoded.fragment == canonical(smiles)
    assert decoded.is_valid
    assert not decoded.cause
    molecule = build_molecule(graph)
    assert sanitise(molecule) == ""
    assert sketch_molecule(molecule, form) == graph


def test_batches_are_decoded_row_by_row():
    known = vocabulary()
    found = decode(encode([sketch(smiles) for smiles in SMILES], known), known)
    assert [molecule.smiles for molecule in found] == [canonical(smiles) for smiles in SMILES]


@pytest.mark.parametrize(
    ("graph", "sanitises", "is_connected", "fragment", "cause"),
    [
        # Five bonds on a carbon.
        (Sketch(("C",) * 3, (0,) * 3, ((0, 1, "triple"), (0, 2, "double"))), False, True, "", "valence for atom # 0 C, 5"),
        # A neutral nitrogen with four bonds, and the same with its charge.
        (Sketch(("N", "C", "C"), (0,) * 3, ((0, 1, "double"), (0, 2, "double"))), False, True, "", "# 0 N, 4"),
        (Sketch(("N", "C", "C"), (1, 0, 0), ((0, 1, "double"), (0, 2, "double"))), True, True, "C=[N+]=C", ""),
        # Two parts, of which the larger one is sound.
        (Sketch(("C", "C", "O"), (0,) * 3, ((0, 1, "double"),)), True, False, "C=C", "it is in 2 parts"),
        # Two parts, of which the smaller one is unsound: the largest fragment is valid, the molecule is not.
        (Sketch(("C", "C", "C", "F", "F"), (0,) * 5, ((0, 1, "single"), (1, 2, "single"), (3, 4, "double"))),
         False, False, "CCC", "# 3 F, 2"),
        # Aromatic bonds without a ring.
        (Sketch(("C", "C"), (0, 0), ((0, 1, "aromatic"),)), False, True, "", "non-ring atom 0 marked aromatic"),
        # Five aromatic carbons cannot share double bonds.
        (Sketch(("C",) * 5, (0,) * 5, ((0, 1, "aromatic"), (0, 4, "aromatic"), (1, 2, "aromatic"), (2, 3, "aromatic"),
                                       (3, 4, "aromatic"))), False, True, "", "Can't kekulize"),
    ],
)  # fmt: skip
def test_what_is_no_molecule_says_why(graph, sanitises, is_connected, fragment, cause):
    decoded = decode_sketch(graph)
    assert (decoded.sanitises, decoded.is_connected, decoded.fragment) == (sanitises, is_connected, fragment)
    assert decoded.is_valid == bool(decoded.smiles) == (not decoded.cause) == (sanitises and is_connected)
    assert cause in decoded.cause


def test_any_classes_decode_and_parts_are_those_of_the_graph():
    """400 random graphs: nothing raises, and connectedness is what networkx says."""
    generator = torch.Generator().manual_seed(0)
    upper = torch.randint(0, 4, (400, 6, 6), generator=generator) * (torch.rand(400, 6, 6, generator=generator) < 0.3)
    bonds = upper.triu(1) + upper.triu(1).transpose(1, 2)
    atoms, charges = torch.randint(0, 9, (400, 6), generator=generator), torch.randint(0, 3, (400, 6), generator=generator)
    found = decode(MoleculeGraphs(atoms, charges, bonds, torch.full((400,), 6)), vocabulary())
    for molecule, matrix in zip(found, bonds.numpy(), strict=True):
        assert molecule.is_connected == nx.is_connected(nx.from_numpy_array(matrix))
        if molecule.is_valid:
            read = Chem.MolFromSmiles(molecule.smiles)
            assert read.GetNumAtoms() == 6
            assert not sum(atom.GetNumRadicalElectrons() for atom in read.GetAtoms())
    assert 0 < sum(molecule.is_valid for molecule in found) < 400
    assert any(molecule.sanitises and not molecule.is_connected for molecule in found)
