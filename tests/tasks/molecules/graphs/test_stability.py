import torch
from rdkit import Chem
from tiny_molecules import sketch, vocabulary

from grpo_pipeline.tasks.molecules.graphs.encoding import Sketch, build_molecule, encode, read_sketches
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.molecule_table import largest_valences, stable_atoms, valencies
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary


def test_an_atom_is_unstable_exactly_where_rdkit_says_so():
    """300 random kekulised graphs: the atoms that RDKit's valence check names, and no others."""
    generator = torch.Generator().manual_seed(0)
    upper = (torch.randint(0, 4, (300, 5, 5), generator=generator) * (torch.rand(300, 5, 5, generator=generator) < 0.5)).triu(1)
    atoms, charges = (torch.randint(0, count, (300, 5), generator=generator) for count in (9, 3))
    graphs = MoleculeGraphs(atoms, charges, upper + upper.transpose(1, 2), torch.full((300,), 5))
    known = vocabulary()
    found = stable_atoms(graphs, known)
    for row, graph in enumerate(read_sketches(graphs, known)):
        # Without the clean-up, which writes a neutral nitro group with five bonds on nitrogen as the charged one.
        problems = Chem.DetectChemistryProblems(build_molecule(graph), sanitizeOps=Chem.SanitizeFlags.SANITIZE_PROPERTIES)
        unstable = {problem.GetAtomIdx() for problem in problems if problem.GetType() == "AtomValenceException"}
        assert {place for place in range(5) if not found[row, place]} == unstable
    assert 300 < int(found.sum()) < 1500


def test_valences_with_charges_and_marked_atoms():
    known = Vocabulary(("C", "N", "O", "[nH]"), (0, -1, 1), (*BONDS, "aromatic"), 5)
    assert largest_valences(known).tolist() == [[4, 3, 3], [3, 2, 4], [2, 1, 3], [2, 1, 3]]


def test_valency_is_the_sum_of_bond_orders():
    """C of CH3-C#N has 1, 4 and the nitrogen 3; an aromatic carbon 1.5 + 1.5 = 3, a fused one 4.5, rounded down to 4."""
    assert valencies(encode([sketch("CC#N")], vocabulary()), vocabulary()).tolist() == [[1, 4, 3]]
    fused = encode([sketch("c1ccc2ccccc2c1", "aromatic")], vocabulary("aromatic"))
    assert valencies(fused, vocabulary("aromatic")).tolist() == [[3, 3, 3, 4, 3, 3, 3, 3, 4, 3]]
    lone = encode([Sketch(("C", "C"), (0, 0), ())], vocabulary(), nodes=3)
    assert valencies(lone, vocabulary()).tolist() == [[0, 0, 0]]
    assert stable_atoms(lone, vocabulary()).tolist() == [[True, True, False]]
