"""Find the atoms of a graph that have no more bonds than their valence allows."""

from functools import cache

import torch
from rdkit import Chem, rdBase
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BOND_ORDERS, Vocabulary

MOST = 8
CHECK = Chem.SanitizeFlags.SANITIZE_PROPERTIES


def stable_atoms(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> Tensor:
    """Find the stable nodes, bool [B, n]; False behind the last node.

    Hydrogens are implicit, so an atom may always have too few bonds. It is stable if the sum of its bond orders is at most the
    largest valence of its element with its charge. An aromatic bond counts 1 here; kekulisation places its double bonds, and
    validity checks that. The name follows the atom stability of molecules with explicit hydrogens (Hoogeboom et al., arXiv
    2203.17003, section 5.1), which also refuses too few bonds. The two are not comparable.
    """
    orders = torch.tensor(
        [
            1.0 if kind == "aromatic" else BOND_ORDERS[place]
            for place, kind in enumerate(vocabulary.bonds)
        ]
    )
    used = orders.to(graphs.bonds.device)[graphs.bonds].sum(dim=-1)
    limits = largest_valences(vocabulary).to(graphs.atoms.device)
    return (used <= limits[graphs.atoms, graphs.charges]) & graphs.node_mask


def valencies(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> Tensor:
    """Sum the bond orders of every node, int64 [B, n]; an aromatic bond counts 1.5, and the sum is rounded down."""
    orders = torch.tensor(BOND_ORDERS[: len(vocabulary.bonds)], device=graphs.bonds.device)
    return orders[graphs.bonds].sum(dim=-1).floor().long()


def largest_valences(vocabulary: Vocabulary) -> Tensor:
    """Compute the largest sum of bond orders of every class of atoms with every charge, float32 [A, C].

    The hydrogen of "[nH]" takes one.
    """
    limits = torch.zeros(len(vocabulary.atoms), len(vocabulary.charges))
    for row, symbol in enumerate(vocabulary.atoms):
        is_marked = symbol.startswith("[")
        for column, charge in enumerate(vocabulary.charges):
            limits[row, column] = (
                largest_valence(symbol[1:-2].capitalize() if is_marked else symbol, charge)
                - is_marked
            )
    return limits


@cache
def largest_valence(element: str, charge: int) -> int:
    """Count the single bonds that RDKit allows an atom, at most 8.

    The number is found by trial: RDKit's table is by number of electrons (N+ bonds like C), with exceptions such as anions of
    sulfur.
    """
    with rdBase.BlockLogs():
        return max(
            (bonds for bonds in range(MOST + 1) if _is_possible(element, charge, bonds)), default=0
        )


def _is_possible(element: str, charge: int, bonds: int) -> bool:
    molecule = Chem.RWMol()
    atom = Chem.Atom(element)
    atom.SetFormalCharge(charge)
    atom.SetNoImplicit(True)
    centre = molecule.AddAtom(atom)
    for _ in range(bonds):
        molecule.AddBond(centre, molecule.AddAtom(Chem.Atom("F")), Chem.BondType.SINGLE)
    return not any(
        problem.GetType() == "AtomValenceException"
        for problem in Chem.DetectChemistryProblems(molecule, CHECK)
    )
