"""Turn graphs into molecules: what RDKit makes of each, once, and why it is none where it is none."""

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
