"""One molecule as classes in plain tuples, half-way between RDKit and tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

from rdkit import Chem

from grpo_pipeline.tasks.molecules.vocabulary import BondForm
from grpo_pipeline.tasks.row_error import RowError

KINDS = {
    Chem.BondType.SINGLE: "single",
    Chem.BondType.DOUBLE: "double",
    Chem.BondType.TRIPLE: "triple",
    Chem.BondType.AROMATIC: "aromatic",
}


@dataclass(frozen=True)
class Sketch:
    """The graph of one molecule; node i is its atom i.

    Attributes:
        atoms: symbol of every atom, as in ``Vocabulary.atoms``.
        charges: formal charge of every atom.
        bonds: (i, j, kind) with i < j, ascending; kinds as in ``Vocabulary.bonds``.
    """

    atoms: tuple[str, ...]
    charges: tuple[int, ...]
    bonds: tuple[tuple[int, int, str], ...]


def sketch_molecule(molecule: Chem.Mol, form: BondForm) -> Sketch:
    """Return the graph of a sanitised molecule, hydrogens implicit.

    In the kekulised form double bonds stand where RDKit's ``Kekulize`` puts them, which follows from the order of the atoms.

    Raises:
        RowError: if a bond is of another kind.
    """
    if form == "kekulised":
        molecule = Chem.Mol(molecule)
        Chem.Kekulize(molecule, clearAromaticFlags=True)
    atoms = list(molecule.GetAtoms())
    return Sketch(
        tuple(_symbol(atom) for atom in atoms), tuple(atom.GetFormalCharge() for atom in atoms), tuple(sorted(_bonds(molecule)))
    )


def _symbol(atom: Chem.Atom) -> str:
    """Write an aromatic atom with a hydrogen that its valence does not tell as a class of its own; carbon always tells."""
    symbol = str(atom.GetSymbol())
    is_marked = atom.GetIsAromatic() and symbol != "C" and atom.GetTotalNumHs() and not atom.GetFormalCharge()
    return f"[{symbol.lower()}H]" if is_marked else symbol


def _bonds(molecule: Chem.Mol) -> Iterable[tuple[int, int, str]]:
    for bond in molecule.GetBonds():
        first, second = sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
        if bond.GetBondType() not in KINDS:
            raise RowError(
                f"bonds must be single, double, triple or aromatic, got {bond.GetBondType().name.lower()} between atoms {first} "
                f"and {second}; leave the molecule out"
            )
        yield first, second, KINDS[bond.GetBondType()]
