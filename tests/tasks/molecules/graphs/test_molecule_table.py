import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import QED, Crippen
from tiny_molecules import SMILES, canonical, parsed, vocabulary

from grpo_pipeline.tasks.molecules.graphs.decoding import build_molecule, decode
from grpo_pipeline.tasks.molecules.graphs.encoding import encode, read_parsed_molecules
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import ParsedMolecule
from grpo_pipeline.tasks.molecules.graphs.stability import largest_valences, stable_atoms, valencies
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary

SKETCHES = [
    parsed("CC(=O)[O-]"),
    ParsedMolecule(("C", "O", "O", "C"), (0,) * 4, ((0, 1, "triple"), (0, 2, "double"), (1, 3, "single"))),
    ParsedMolecule(("C", "O", "F"), (0,) * 3, ((0, 1, "single"),)),
    parsed("c1cc[nH]c1"),
]


def table(*, graphs=SKETCHES, known=("CC(=O)[O-]",)):
    encoded = encode(list(graphs), vocabulary())
    return tabulate_molecules(encoded, decode(encoded, vocabulary()), vocabulary(), {*known})


def test_rows_of_valid_and_invalid_graphs():
    crowded = ParsedMolecule(("C",) * 4, (0,) * 4, ((0, 1, "triple"), (0, 2, "triple"), (0, 3, "double")))
    rows = table(graphs=[*SKETCHES, crowded])
    count = lambda prefix, names: rows[[f"{prefix}_{name}" for name in names]].to_numpy().tolist()  # noqa: E731
    assert count("atoms", "CNOF") == [[2, 0, 2, 0], [2, 0, 2, 0], [1, 0, 1, 1], [4, 1, 0, 0], [4, 0, 0, 0]]
    assert count("bonds", ("single", "double", "triple")) == [[2, 1, 0], [1, 1, 1], [1, 0, 0], [3, 2, 0], [0, 1, 2]]
    # Bond orders of the second graph: C 5, O 4, O 2, C 1; the class of 6 also counts what is above.
    valency = count("valency", range(7))
    assert valency[1] == [0, 1, 1, 0, 1, 1, 0]
    assert valency[4] == [0, 0, 1, 2, 0, 0, 1]
    assert [sum(row) for row in valency] == list(rows["n_atoms"]) == [4, 4, 3, 5, 4]
    rows, pyrrole = table(), Chem.MolFromSmiles("c1cc[nH]c1")
    expected = {
        "smiles": [canonical("CC(=O)[O-]"), "", "", "c1cc[nH]c1"],
        "is_valid": [1, 0, 0, 1],
        "sanitises": [1, 0, 1, 1],
        "is_connected": [1, 1, 0, 1],
        "fragment_is_valid": [1, 0, 1, 1],
        # C with 3 + 2 = 5 bonds and O with 3 + 1 = 4 are too many; O with 2 and C with 1 are not.
        "stable_atoms": [4, 2, 3, 5],
        "is_stable": [1, 0, 1, 1],
    }
    assert {name: list(rows[name]) for name in expected} == expected
    np.testing.assert_array_equal(rows["is_known"], [1.0, np.nan, np.nan, 0.0])
    assert rows["cause"][2] == "it is in 2 parts"
    assert (rows["qed"][3], rows["logp"][3]) == (QED.qed(pyrrole), Crippen.MolLogP(pyrrole))
    assert rows[["qed", "logp", "sa"]].isna().all(axis=1).tolist() == [False, True, True, False]
    assert table(graphs=SKETCHES[1:3])["qed"].isna().all()
    with pytest.raises(ValueError, match="one entry per graph, got 1 for 2"):
        tabulate_molecules(encode(SKETCHES[1:3], vocabulary()), [None], vocabulary(), set())


def test_an_atom_is_unstable_exactly_where_rdkit_says_so():
    """300 random kekulised graphs: the atoms that RDKit's valence check names, and no others."""
    generator = torch.Generator().manual_seed(0)
    upper = (torch.randint(0, 4, (300, 5, 5), generator=generator) * (torch.rand(300, 5, 5, generator=generator) < 0.5)).triu(1)
    atoms, charges = (torch.randint(0, count, (300, 5), generator=generator) for count in (9, 3))
    graphs = MoleculeGraphs(atoms, charges, upper + upper.transpose(1, 2), torch.full((300,), 5))
    known = vocabulary()
    found = stable_atoms(graphs, known)
    for row, graph in enumerate(read_parsed_molecules(graphs, known)):
        # Without the clean-up, which writes a neutral nitro group with five bonds on nitrogen as the charged one.
        problems = Chem.DetectChemistryProblems(build_molecule(graph), sanitizeOps=Chem.SanitizeFlags.SANITIZE_PROPERTIES)
        unstable = {problem.GetAtomIdx() for problem in problems if problem.GetType() == "AtomValenceException"}
        assert {place for place in range(5) if not found[row, place]} == unstable
    assert 300 < int(found.sum()) < 1500


def test_valences_and_valencies():
    known = Vocabulary(("C", "N", "O", "[nH]"), (0, -1, 1), (*BONDS, "aromatic"), 5)
    assert largest_valences(known).tolist() == [[4, 3, 3], [3, 2, 4], [2, 1, 3], [2, 1, 3]]
    # C of CH3-C#N has 1, 4 and the nitrogen 3; an aromatic carbon 1.5 + 1.5 = 3, a fused one 4.5, rounded down to 4.
    assert valencies(encode([parsed("CC#N")], vocabulary()), vocabulary()).tolist() == [[1, 4, 3]]
    fused = encode([parsed("c1ccc2ccccc2c1", "aromatic")], vocabulary("aromatic"))
    assert valencies(fused, vocabulary("aromatic")).tolist() == [[3, 3, 3, 4, 3, 3, 3, 3, 4, 3]]
    for form in ("kekulised", "aromatic"):  # every atom of a molecule is stable
        graphs = encode([parsed(smiles, form) for smiles in SMILES], vocabulary(form))
        assert torch.equal(stable_atoms(graphs, vocabulary(form)), graphs.node_mask)
    lone = encode([ParsedMolecule(("C", "C"), (0, 0), ())], vocabulary(), nodes=3)
    assert valencies(lone, vocabulary()).tolist() == [[0, 0, 0]]
    assert stable_atoms(lone, vocabulary()).tolist() == [[True, True, False]]
