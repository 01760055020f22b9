"""Decode graphs into molecules by RDKit, with the reason where a graph is no valid molecule."""

from collections.abc import Sequence
from dataclasses import dataclass

from rdkit import Chem, rdBase

from grpo_pipeline.tasks.molecules.graphs.encoding import read_parsed_molecules
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import KINDS, ParsedMolecule
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary

TYPES = {kind: type_ for type_, kind in KINDS.items()}
MAX_CAUSE = 200


@dataclass(frozen=True)
class Decoded:
    """A molecule as text; canonical SMILES without stereo marks, by which molecules are compared.

    Attributes:
        smiles: SMILES of the whole molecule if it is valid, else "".
        fragment: SMILES of the largest connected part if that part sanitises, else "".
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
        """Check that the molecule is valid: it sanitises and is connected."""
        return self.sanitises and self.is_connected


def decode(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> list[Decoded]:
    """Decode every graph; any graph is accepted, and none raises an error.

    Missing bonds are filled with implicit hydrogens, as far as RDKit's valences (with their charge) allow. RDKit's clean-up gives
    some neutral groups with five bonds on nitrogen, such as nitro, their charges: these graphs are valid.
    """
    with rdBase.BlockLogs():
        return [decode_parsed(parsed) for parsed in read_parsed_molecules(graphs, vocabulary)]


def decode_parsed(parsed: ParsedMolecule) -> Decoded:
    """Decode a graph; see ``decode``."""
    molecule = build_molecule(parsed)
    parts = Chem.GetMolFrags(molecule)
    cause = sanitise(molecule)
    if not cause and len(parts) == 1:
        smiles = Chem.MolToSmiles(molecule)
        return Decoded(smiles, smiles, sanitises=True, is_connected=True, cause="")
    # If a graph is no valid molecule, its largest connected part is decoded by itself.
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
    """Build a molecule from the graph, not yet sanitised."""
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
    """Sanitise a molecule in place; returns the error sentence, or ""."""
    try:
        Chem.SanitizeMol(molecule)
    except Chem.MolSanitizeException as error:
        return " ".join(str(error).split())[:MAX_CAUSE]
    return ""


def _atom(symbol: str, charge: int) -> Chem.Atom:
    """Build an atom; "[nH]" is a nitrogen with exactly one explicit hydrogen."""
    is_marked = symbol.startswith("[")
    atom = Chem.Atom(symbol[1:-2].capitalize() if is_marked else symbol)
    atom.SetFormalCharge(charge)
    if is_marked:
        atom.SetNumExplicitHs(1)
    return atom


def _part(parsed: ParsedMolecule, members: Sequence[int]) -> ParsedMolecule:
    """Select the graph of some atoms of another, in ascending order."""
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
