"""Parse a molecule into classes in plain tuples, half-way between RDKit and tensors."""

from collections.abc import Iterable
from dataclasses import dataclass

from rdkit import Chem

from grpo_pipeline.tasks.molecules.graphs.vocabulary import BondForm, Vocabulary
from grpo_pipeline.tasks.row_error import RowError

KINDS = {
    Chem.BondType.SINGLE: "single",
    Chem.BondType.DOUBLE: "double",
    Chem.BondType.TRIPLE: "triple",
    Chem.BondType.AROMATIC: "aromatic",
}


@dataclass(frozen=True)
class ParsedMolecule:
    """The graph of a molecule; node i is its atom i.

    Attributes:
        atoms: symbol of every atom, as in ``Vocabulary.atoms``.
        charges: formal charge of every atom.
        bonds: (i, j, kind) with i < j, ascending; kinds as in ``Vocabulary.bonds``.
    """

    atoms: tuple[str, ...]
    charges: tuple[int, ...]
    bonds: tuple[tuple[int, int, str], ...]


def parse_molecule(molecule: Chem.Mol, form: BondForm) -> ParsedMolecule:
    """Build the graph of a sanitised molecule, hydrogens implicit.

    In the kekulised form double bonds stand where RDKit's ``Kekulize`` puts them, which follows from the order of the atoms.

    Raises:
        RowError: if a bond is of another kind.
    """
    if form == "kekulised":
        molecule = Chem.Mol(molecule)
        Chem.Kekulize(molecule, clearAromaticFlags=True)
    atoms = list(molecule.GetAtoms())
    return ParsedMolecule(
        tuple(_symbol(atom) for atom in atoms),
        tuple(atom.GetFormalCharge() for atom in atoms),
        tuple(sorted(_bonds(molecule))),
    )


def _symbol(atom: Chem.Atom) -> str:
    """Write an aromatic atom as a class of its own if its hydrogen does not follow from its valence; carbon's always does."""
    symbol = str(atom.GetSymbol())
    is_marked = (
        atom.GetIsAromatic()
        and symbol != "C"
        and atom.GetTotalNumHs()
        and not atom.GetFormalCharge()
    )
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


def check_covered(parsed: ParsedMolecule, vocabulary: Vocabulary) -> None:
    """Refuse a molecule whose classes the vocabulary lacks.

    Raises:
        RowError: for an element, charge or kind of bond without a class, or too many atoms.
    """
    if len(parsed.atoms) > vocabulary.max_atoms:
        raise RowError(
            f"a molecule must have at most {vocabulary.max_atoms} heavy atoms, got {len(parsed.atoms)}; "
            "raise molecules.data.max_atoms or leave it out"
        )
    kinds = [kind for _, _, kind in parsed.bonds]
    for name, found in (("atoms", parsed.atoms), ("charges", parsed.charges), ("bonds", kinds)):
        known = getattr(vocabulary, name)
        if strangers := sorted({*found} - {*known}, key=str):
            raise RowError(
                f"{name} must be among {list(known)}, got {strangers}; widen molecules.data or leave the molecule out"
            )
