import networkx as nx
import pytest
import torch
from rdkit import Chem
from tiny_molecules import SMILES, canonical, parsed, vocabulary

from grpo_pipeline.tasks.molecules.graphs import decoding, encoding, parsed_molecules
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import ParsedMolecule
from grpo_pipeline.tasks.row_error import RowError


def test_classes_of_acetate_and_of_aromatic_rings():
    """CC(=O)[O-]: C-C single, C=O double, C-O single; O is class 2, charge -1 is class 1."""
    graphs = encoding.encode([parsed("CC(=O)[O-]"), parsed("CO")], vocabulary())
    assert graphs.atoms.tolist() == [[0, 0, 2, 2], [0, 2, 0, 0]]
    assert graphs.charges.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert graphs.bonds[0].tolist() == [[0, 1, 0, 0], [1, 0, 2, 1], [0, 2, 0, 0], [0, 1, 0, 0]]
    assert graphs.sizes.tolist() == [4, 2]
    # Aromatic atoms with a hydrogen are a class.
    assert parsed("Cc1c[nH]cn1", "aromatic").atoms == ("C", "C", "C", "[nH]", "C", "N")
    assert parsed("Cc1c[nH]cn1", "kekulised").atoms == ("C", "C", "C", "N", "C", "N")
    assert parsed("c1cc[nH+]cc1", "aromatic").atoms == ("C", "C", "C", "N", "C", "C")  # its charge says it
    assert {kind for _, _, kind in parsed("c1ccccc1", "aromatic").bonds} == {"aromatic"}
    assert sorted(kind for _, _, kind in parsed("c1ccccc1").bonds) == ["double"] * 3 + ["single"] * 3


def test_what_has_no_class_is_refused():
    parsed_molecules.check_covered(parsed("C" * 12), vocabulary())  # the largest that there may be
    for found, message in (
        (parsed("C[Si](C)C"), r"atoms must be among .* got \['Si'\]; widen molecules.data"),
        (ParsedMolecule(("C",), (2,), ()), r"charges must be among \[0, -1, 1\], got \[2\]"),
        (parsed("c1ccccc1", "aromatic"), r"bonds must be among .* got \['aromatic'\]"),
        (parsed("C" * 13), "at most 12 heavy atoms, got 13"),
    ):
        for check in (parsed_molecules.check_covered, lambda graph, known: encoding.encode([graph], known)):
            with pytest.raises(RowError, match=message):
                check(found, vocabulary())
        strange = MoleculeGraphs(*(torch.tensor(part) for part in ([[9, 0]], [[0, 0]], [[[0, 1], [1, 0]]], [2])))
        with pytest.raises(ValueError, match="atoms must be classes below 9, got 9"):
            list(encoding.read_parsed_molecules(strange, vocabulary()))
        with pytest.raises(ValueError, match="at least one molecule, got none"):
            encoding.encode([], vocabulary())


@pytest.mark.parametrize("form", ["kekulised", "aromatic"])
def test_graph_to_molecule_to_graph_is_exact(form):
    graphs, known = [parsed(canonical(smiles), form) for smiles in SMILES], vocabulary(form)
    for nodes in (None, 20):
        together = encoding.encode(graphs, known, nodes=nodes)
        assert together.atoms.shape == (len(SMILES), nodes or 11)
        assert list(encoding.read_parsed_molecules(together, known)) == graphs
        for decoded, smiles, graph in zip(decoding.decode(together, known), map(canonical, SMILES), graphs, strict=True):
            assert (decoded.smiles, decoded.fragment, decoded.is_valid, decoded.cause) == (smiles, smiles, True, "")
            molecule = decoding.build_molecule(graph)
            assert decoding.sanitise(molecule) == ""
            assert parsed_molecules.parse_molecule(molecule, form) == graph


@pytest.mark.parametrize(
    ("graph", "sanitises", "is_connected", "fragment", "cause"),
    [
        # Five bonds on a carbon.
        (ParsedMolecule(("C",) * 3, (0,) * 3, ((0, 1, "triple"), (0, 2, "double"))), False, True, "", "for atom # 0 C, 5"),
        # A neutral nitrogen with four bonds, and the same with its charge.
        (ParsedMolecule(("N", "C", "C"), (0,) * 3, ((0, 1, "double"), (0, 2, "double"))), False, True, "", "# 0 N, 4"),
        (ParsedMolecule(("N", "C", "C"), (1, 0, 0), ((0, 1, "double"), (0, 2, "double"))), True, True, "C=[N+]=C", ""),
        # Two parts, of which the larger one is sound.
        (ParsedMolecule(("C", "C", "O"), (0,) * 3, ((0, 1, "double"),)), True, False, "C=C", "it is in 2 parts"),
        # Two parts, of which the smaller one is unsound: the largest fragment is valid, the molecule is not.
        (ParsedMolecule(("C", "C", "C", "F", "F"), (0,) * 5, ((0, 1, "single"), (1, 2, "single"), (3, 4, "double"))),
         False, False, "CCC", "# 3 F, 2"),
        # Aromatic bonds without a ring.
        (ParsedMolecule(("C", "C"), (0, 0), ((0, 1, "aromatic"),)), False, True, "", "non-ring atom 0 marked aromatic"),
        # Five aromatic carbons cannot share double bonds.
        (ParsedMolecule(("C",) * 5, (0,) * 5, ((0, 1, "aromatic"), (0, 4, "aromatic"), (1, 2, "aromatic"), (2, 3, "aromatic"),
                                       (3, 4, "aromatic"))), False, True, "", "Can't kekulize"),
    ],
)  # fmt: skip
def test_what_is_no_molecule_says_why(graph, sanitises, is_connected, fragment, cause):
    decoded = decoding.decode_parsed(graph)
    assert (decoded.sanitises, decoded.is_connected, decoded.fragment) == (sanitises, is_connected, fragment)
    assert decoded.is_valid == bool(decoded.smiles) == (not decoded.cause) == (sanitises and is_connected)
    assert cause in decoded.cause


def test_any_classes_decode_and_parts_are_those_of_the_graph():
    """400 random graphs: nothing raises, and connectedness is what networkx says."""
    generator = torch.Generator().manual_seed(0)
    upper = torch.randint(0, 4, (400, 6, 6), generator=generator) * (torch.rand(400, 6, 6, generator=generator) < 0.3)
    bonds = upper.triu(1) + upper.triu(1).transpose(1, 2)
    atoms, charges = torch.randint(0, 9, (400, 6), generator=generator), torch.randint(0, 3, (400, 6), generator=generator)
    found = decoding.decode(MoleculeGraphs(atoms, charges, bonds, torch.full((400,), 6)), vocabulary())
    for molecule, matrix in zip(found, bonds.numpy(), strict=True):
        assert molecule.is_connected == nx.is_connected(nx.from_numpy_array(matrix))
        if molecule.is_valid:
            read = Chem.MolFromSmiles(molecule.smiles)
            assert read.GetNumAtoms() == 6
            assert not sum(atom.GetNumRadicalElectrons() for atom in read.GetAtoms())
    assert 0 < sum(molecule.is_valid for molecule in found) < 400
    assert any(molecule.sanitises and not molecule.is_connected for molecule in found)
