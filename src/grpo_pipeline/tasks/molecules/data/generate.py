"""Enumerate small molecules by growing them atom by atom.

Every connected graph has an atom whose removal leaves a connected graph. So every connected graph is reached by bonding a new
atom to existing atoms. A level is complete if ``LINKS`` has 1 to 4, no pattern is forbidden and ``per_size`` is never reached.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from rdkit import Chem, rdBase

from grpo_pipeline.tasks.molecules.data.charged_forms import charge_some
from grpo_pipeline.tasks.molecules.data.params import GeneratorParams

Kind = tuple[str, int]
LINKS = {1: 3.0, 2: 1.0}
"""Number of atoms that a new one is bonded to -> how often, relative to the others: 1 grows trees, 2 closes rings, 3 and 4 would
make cages. The shares matter only where not all molecules are kept."""
FORBIDDEN = (
    "[N,O,F]~[N,O,F]",  # chains of heteroatoms, outside aromatic rings
    "[N,O,F][CX4][N,O]",  # two heteroatoms on one saturated carbon
    "[N,O,F]-C#C",
    "[OH,NH1,NH2]-[C;X3]=[C,N]",  # enols and the like
    "C=[NH]",
    "C=C=[C,N,O]",
    "[*;R]#[*;R]",  # strained rings
    "*=[*;R]=*",
    "[*;r3,r4]=[*;r3,r4]",
    "[*;R2,R3,R4;r3,r4]",
)
"""SMARTS of what no molecule may hold, nor grow from."""
CHARGED = 0.2
"""Share of the molecules with an acid or an amine that are written in their charged form."""
ORDERS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}


@dataclass(frozen=True)
class Move:
    """A move: a new atom and its bonds, at least one, each (atom of the parent, order)."""

    parent: int
    symbol: str
    links: tuple[tuple[int, int], ...]


def enumerate_molecules(params: GeneratorParams) -> list[str]:
    """Enumerate canonical SMILES of ``min_atoms`` to ``max_atoms`` heavy atoms, all different, by size and then by text.

    A level that would hold more than ``per_size`` molecules holds as many drawn ones, and the next level grows from those.

    Raises:
        ValueError: for an element without a usual valence.
    """
    with rdBase.BlockLogs():
        forbidden = [Chem.MolFromSmarts(text) for text in FORBIDDEN]
        level = sorted(
            {
                Chem.MolToSmiles(Chem.MolFromSmiles(f"[{symbol}H{valence_of(symbol)}]"))
                for symbol in params.atoms
            }
        )
        levels: list[str] = []
        for size in range(2, params.max_atoms + 1):
            level = grow_level(
                level, params, forbidden, generator=np.random.default_rng([params.seed, size])
            )
            if size >= params.min_atoms:
                levels += charge_some(
                    level, CHARGED, generator=np.random.default_rng([params.seed, size, 1])
                )
    return levels


def grow_level(
    parents: Sequence[str],
    params: GeneratorParams,
    forbidden: Sequence[Chem.Mol],
    *,
    generator: np.random.Generator,
) -> list[str]:
    """Grow molecules by one atom; returns all of them or ``per_size`` drawn ones, sorted.

    Moves are tried in an order that follows the shares of elements and numbers of links. Otherwise pairs of atoms and elements
    with many valences would dominate, because they have the most moves.
    """
    molecules = [_kekulised(smiles) for smiles in parents]
    moves = [
        move
        for place, molecule in enumerate(molecules)
        for move in moves_of(molecule, place, params)
    ]
    found: set[str] = set()
    kinds = [(move.symbol, len(move.links)) for move in moves]
    weights = {(symbol, links): params.atoms[symbol] * LINKS[links] for symbol, links in {*kinds}}
    for place in draw_order(kinds, weights, generator):
        child = apply_move(molecules[moves[place].parent], moves[place])
        if child is not None and not any(child.HasSubstructMatch(pattern) for pattern in forbidden):
            found.add(Chem.MolToSmiles(child))
            if len(found) == params.per_size:
                break
    return sorted(found)


def moves_of(molecule: Chem.Mol, parent: int, params: GeneratorParams) -> Iterator[Move]:
    """Yield every way to bond a new atom to atoms that have hydrogens left; ``LINKS`` holds the allowed numbers of bonds."""
    room = {
        atom.GetIdx(): min(atom.GetTotalNumHs(), 3)
        for atom in molecule.GetAtoms()
        if atom.GetTotalNumHs()
    }
    for symbol in params.atoms:
        valence = valence_of(symbol)
        for count in sorted(LINKS):
            for atoms in combinations(room, count):
                for orders in product(*(range(1, room[atom] + 1) for atom in atoms)):
                    if sum(orders) <= valence:
                        yield Move(parent, symbol, tuple(zip(atoms, orders, strict=True)))


def apply_move(molecule: Chem.Mol, move: Move) -> Chem.Mol | None:
    """Add the new atom to the molecule and sanitise it; None if that is impossible."""
    grown = Chem.RWMol(molecule)
    new = grown.AddAtom(Chem.Atom(move.symbol))
    for atom, order in move.links:
        grown.AddBond(atom, new, ORDERS[order])
    child = grown.GetMol()
    return (
        child
        if Chem.SanitizeMol(child, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE
        else None
    )


def draw_order(
    kinds: Sequence[Kind], weights: Mapping[Kind, float], generator: np.random.Generator
) -> list[int]:
    """Draw a random order of items; the kind of the first is drawn in proportion to the weights of the kinds.

    The items are sorted by E / w, with E from the unit exponential and w = weight of the kind / number of its items. That is a
    draw without replacement (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
    """
    number = Counter(kinds)
    scales = np.asarray([number[kind] / weights[kind] for kind in kinds], dtype=np.float64)
    return [
        int(place)
        for place in np.argsort(generator.exponential(size=len(kinds)) * scales, kind="stable")
    ]


def valence_of(symbol: str) -> int:
    """Look up the usual valence of a neutral atom, at most 4.

    Raises:
        ValueError: if there is no such element, or none that bonds.
    """
    table = Chem.GetPeriodicTable()
    try:
        valence = int(table.GetDefaultValence(symbol))
    except RuntimeError:
        valence = 0
    if not 1 <= valence <= 4 or symbol == "H":
        raise ValueError(
            f"molecules.generator.atoms must be elements of valence 1 to 4, got {symbol!r}; take C, N, O, F"
        )
    return valence


def _kekulised(smiles: str) -> Chem.Mol:
    molecule = Chem.MolFromSmiles(smiles)
    Chem.Kekulize(molecule, clearAromaticFlags=True)
    for atom in molecule.GetAtoms():
        # New bonds replace hydrogens of [nH] and of the single atoms at the start.
        atom.SetNoImplicit(False)
        atom.SetNumExplicitHs(0)
    molecule.UpdatePropertyCache(strict=False)
    return molecule
