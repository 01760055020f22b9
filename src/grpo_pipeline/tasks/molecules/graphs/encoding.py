"""Convert parsed molecules to tensors of classes, and back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from rdkit import Chem, rdBase

from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BondForm, Vocabulary
from grpo_pipeline.tasks.text_lines import RowError

# One molecule as classes in plain tuples, half-way between RDKit and tensors.

KINDS = {
    Chem.BondType.SINGLE: "single",
    Chem.BondType.DOUBLE: "double",
    Chem.BondType.TRIPLE: "triple",
    Chem.BondType.AROMATIC: "aromatic",
}


@dataclass(frozen=True)
class ParsedMolecule:
    """The graph of one molecule; node i is its atom i.

    Attributes:
        atoms: symbol of every atom, as in ``Vocabulary.atoms``.
        charges: formal charge of every atom.
        bonds: (i, j, kind) with i < j, ascending; kinds as in ``Vocabulary.bonds``.
    """

    atoms: tuple[str, ...]
    charges: tuple[int, ...]
    bonds: tuple[tuple[int, int, str], ...]


def parse_molecule(molecule: Chem.Mol, form: BondForm) -> ParsedMolecule:
    """Return the graph of a sanitised molecule, hydrogens implicit.

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
    """Write an aromatic atom with a hydrogen that its valence does not tell as a class of its own; carbon always tells."""
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
    """Refuse a molecule that the vocabulary cannot write.

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


def encode(
    parsed_molecules: Sequence[ParsedMolecule], vocabulary: Vocabulary, *, nodes: int | None = None
) -> MoleculeGraphs:
    """Return graphs of classes, padded to ``nodes``, or else to the largest of them.

    Raises:
        RowError: as ``check_covered``.
        ValueError: if there is no parsed molecule.
    """
    if not parsed_molecules:
        raise ValueError(
            "parsed molecules must hold at least one molecule, got none; give those that are to be encoded"
        )
    for parsed in parsed_molecules:
        check_covered(parsed, vocabulary)
    width = max(len(parsed.atoms) for parsed in parsed_molecules) if nodes is None else nodes
    places = {
        name: {value: place for place, value in enumerate(getattr(vocabulary, name))}
        for name in ("atoms", "charges", "bonds")
    }
    atoms, charges = (
        torch.tensor(
            [
                _padded([places[name][value] for value in getattr(parsed, name)], width)
                for parsed in parsed_molecules
            ]
        )
        for name in ("atoms", "charges")
    )
    bonds = torch.zeros(len(parsed_molecules), width, width, dtype=torch.int64)  # [B, n, n]
    entries = [
        (row, first, second, places["bonds"][kind])
        for row, parsed in enumerate(parsed_molecules)
        for first, second, kind in parsed.bonds
    ]
    if entries:
        # One row for each bond: [bonds, 4] -> four tensors [bonds]; both directions are written.
        row, first, second, kind = torch.tensor(entries).unbind(dim=1)
        bonds[row, first, second] = kind
        bonds[row, second, first] = kind
    return MoleculeGraphs(
        atoms, charges, bonds, torch.tensor([len(parsed.atoms) for parsed in parsed_molecules])
    )


def read_parsed_molecules(
    graphs: MoleculeGraphs, vocabulary: Vocabulary
) -> Iterator[ParsedMolecule]:
    """Yield the parsed molecule of every graph; ``encode`` of it gives the same classes.

    Raises:
        ValueError: if a class is outside the vocabulary.
    """
    _check_classes(graphs, vocabulary)
    atoms, charges, sizes = graphs.atoms.tolist(), graphs.charges.tolist(), graphs.sizes.tolist()
    pairs: list[list[tuple[int, int, str]]] = [[] for _ in sizes]
    # Above the diagonal each bond is there once: [bonds, 3] of graph, first node, second node.
    where = graphs.bonds.triu(diagonal=1).nonzero()
    kinds = graphs.bonds[where.unbind(dim=1)].tolist()
    for (row, first, second), kind in zip(where.tolist(), kinds, strict=True):
        pairs[row].append((first, second, vocabulary.bonds[kind]))
    for row, size in enumerate(sizes):
        symbols = tuple(vocabulary.atoms[place] for place in atoms[row][:size])
        yield ParsedMolecule(
            symbols,
            tuple(vocabulary.charges[place] for place in charges[row][:size]),
            tuple(pairs[row]),
        )


def _padded(classes: list[int], width: int) -> list[int]:
    return classes + [0] * (width - len(classes))


def _check_classes(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> None:
    for name in ("atoms", "charges", "bonds"):
        classes, known = getattr(graphs, name), getattr(vocabulary, name)
        if classes.numel() and int(classes.max()) >= len(known):
            raise ValueError(
                f"{name} must be classes below {len(known)}, got {int(classes.max())}; use the vocabulary of these graphs"
            )


# Graphs to molecules: what RDKit makes of each, once, and why it is none where it is none.

TYPES = {kind: type_ for type_, kind in KINDS.items()}
MAX_CAUSE = 200


@dataclass(frozen=True)
class Decoded:
    """A molecule as text; canonical SMILES without stereo marks, by which molecules are compared.

    Attributes:
        smiles: of the whole molecule if it is valid, else "".
        fragment: of the largest connected part if that part sanitises, else "".
        sanitises: whether RDKit sanitises the whole graph: every valence is possible, aromatic rings can be kekulised.
        is_connected: whether every atom is reached from every other one.
        cause: why the molecule is not valid, "" if it is.
    """

    smiles: str
    fragment: str
    sanitises: bool
    is_connected: bool
    cause: str

    @property
    def is_valid(self) -> bool:
        """Valid means: it sanitises and is connected."""
        return self.sanitises and self.is_connected


def decode(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> list[Decoded]:
    """Return what every graph is; graphs may be anything, nothing raises because of them.

    Missing bonds are filled with implicit hydrogens, as far as RDKit's valences (with their charge) have room. RDKit's clean-up
    writes some neutral groups of five bonds on nitrogen, such as nitro, with their charges: these graphs are valid.
    """
    with rdBase.BlockLogs():
        return [decode_parsed(parsed) for parsed in read_parsed_molecules(graphs, vocabulary)]


def decode_parsed(parsed: ParsedMolecule) -> Decoded:
    """Return what one graph is; see ``decode``."""
    molecule = build_molecule(parsed)
    parts = Chem.GetMolFrags(molecule)
    cause = sanitise(molecule)
    if not cause and len(parts) == 1:
        smiles = Chem.MolToSmiles(molecule)
        return Decoded(smiles, smiles, sanitises=True, is_connected=True, cause="")
    # Of a graph that is not one valid molecule the largest connected part is read by itself.
    fragment = build_molecule(_part(parsed, max(parts, key=len)))
    smiles = "" if sanitise(fragment) else Chem.MolToSmiles(fragment)
    return Decoded(
        "",
        smiles,
        sanitises=not cause,
        is_connected=len(parts) == 1,
        cause=cause or f"it is in {len(parts)} parts",
    )


def build_molecule(parsed: ParsedMolecule) -> Chem.RWMol:
    """Return the graph as a molecule that is not yet sanitised."""
    molecule = Chem.RWMol()
    for symbol, charge in zip(parsed.atoms, parsed.charges, strict=True):
        molecule.AddAtom(_atom(symbol, charge))
    for first, second, kind in parsed.bonds:
        molecule.AddBond(first, second, TYPES[kind])
        if kind == "aromatic":
            molecule.GetBondBetweenAtoms(first, second).SetIsAromatic(True)
            for place in (first, second):
                molecule.GetAtomWithIdx(place).SetIsAromatic(True)
    return molecule


def sanitise(molecule: Chem.Mol) -> str:
    """Sanitise a molecule in place; return what is wrong with it, or ""."""
    try:
        Chem.SanitizeMol(molecule)
    except Chem.MolSanitizeException as error:
        return " ".join(str(error).split())[:MAX_CAUSE]
    return ""


def _atom(symbol: str, charge: int) -> Chem.Atom:
    """Return an atom; "[nH]" is a nitrogen with one hydrogen of its own and no others."""
    is_marked = symbol.startswith("[")
    atom = Chem.Atom(symbol[1:-2].capitalize() if is_marked else symbol)
    atom.SetFormalCharge(charge)
    if is_marked:
        atom.SetNumExplicitHs(1)
    return atom


def _part(parsed: ParsedMolecule, members: Sequence[int]) -> ParsedMolecule:
    """Return the graph of some atoms of another, in ascending order; of parts of one size the first is the largest."""
    order = sorted(members)
    place = {old: new for new, old in enumerate(order)}
    return ParsedMolecule(
        tuple(parsed.atoms[old] for old in order),
        tuple(parsed.charges[old] for old in order),
        tuple(
            (place[first], place[second], kind)
            for first, second, kind in parsed.bonds
            if first in place
        ),
    )
