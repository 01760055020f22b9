"""Describe generated molecules as rows of a table, from which metrics, drawings and reports are made."""

from collections.abc import Collection, Sequence
from functools import cache

import numpy as np
import pandas as pd
import torch
from rdkit import Chem, rdBase
from torch import Tensor

from grpo_pipeline.tasks.molecules.graphs.encoding import Decoded
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.properties import PROPERTIES, tabulate_properties
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BOND_ORDERS, Vocabulary

# Which atoms of a graph have no more bonds than they can.

MOST = 8
CHECK = Chem.SanitizeFlags.SANITIZE_PROPERTIES


def stable_atoms(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> Tensor:
    """Return which nodes are stable, bool [B, n]; False behind the last node.

    Hydrogens are implicit, so an atom may always have too few bonds. It is stable if the sum of its bond orders is at most the
    largest valence of its element with its charge. An aromatic bond counts 1 here: where its double bonds go is decided by
    kekulisation, which validity checks. Named after the atom stability of molecules with explicit hydrogens (Hoogeboom et al.,
    arXiv 2203.17003, section 5.1), which also refuses too few bonds: the two are not comparable.
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
    """Return the sum of bond orders of every node, int64 [B, n]; an aromatic bond counts 1.5, and the sum is rounded down."""
    orders = torch.tensor(BOND_ORDERS[: len(vocabulary.bonds)], device=graphs.bonds.device)
    return orders[graphs.bonds].sum(dim=-1).floor().long()


def largest_valences(vocabulary: Vocabulary) -> Tensor:
    """Return the largest sum of bond orders of every class of atoms with every charge, float32 [A, C].

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
    """Return how many single bonds RDKit lets an atom have, at most 8.

    Asked by trial: its table is by number of electrons (N+ bonds like C), with exceptions such as anions of sulfur.
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


MAX_VALENCY = 6


def tabulate_molecules(
    graphs: MoleculeGraphs,
    decoded: Sequence[Decoded],
    vocabulary: Vocabulary,
    known: Collection[str],
) -> pd.DataFrame:
    """Return one row per graph, in order.

    Columns: ``smiles`` (canonical, "" if not valid), ``fragment`` (of the largest part, "" if it does not sanitise), ``cause``
    (why it is not valid), ``is_valid``, ``sanitises``, ``is_connected``, ``fragment_is_valid`` (0 or 1), ``is_known`` (0 or 1,
    NaN if not valid), ``n_atoms``, ``stable_atoms`` (their number), ``is_stable`` (all of them), ``qed``, ``logp``, ``sa`` (NaN
    if not valid), and how often each class occurs: ``atoms_<symbol>``, ``bonds_<kind>``, ``valency_<sum of bond orders>`` (the
    last one counts that sum and above).

    Args:
        graphs: B graphs.
        decoded: what they are, from ``decode``.
        vocabulary: of the graphs.
        known: canonical SMILES of the training split.

    Raises:
        ValueError: if there are other than B decoded molecules.
    """
    if len(decoded) != len(graphs):
        raise ValueError(
            f"decoded must hold one entry per graph, got {len(decoded)} for {len(graphs)}; decode these graphs"
        )
    return pd.concat(
        [
            _texts(decoded, known),
            _sizes(graphs, vocabulary),
            _properties(decoded),
            _counts(graphs, vocabulary),
        ],
        axis=1,
    )


def _texts(decoded: Sequence[Decoded], known: Collection[str]) -> pd.DataFrame:
    rows = [
        {
            "smiles": one.smiles,
            "fragment": one.fragment,
            "cause": one.cause,
            "is_valid": int(one.is_valid),
            "sanitises": int(one.sanitises),
            "is_connected": int(one.is_connected),
            "fragment_is_valid": int(bool(one.fragment)),
            "is_known": float(one.smiles in known) if one.is_valid else np.nan,
        }
        for one in decoded
    ]
    return pd.DataFrame(rows)


def _sizes(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> pd.DataFrame:
    stable = stable_atoms(graphs, vocabulary).sum(dim=1)  # [B]
    sizes = {
        "n_atoms": graphs.sizes,
        "stable_atoms": stable,
        "is_stable": (stable == graphs.sizes).long(),
    }
    return pd.DataFrame({name: values.cpu().numpy() for name, values in sizes.items()})


def _properties(decoded: Sequence[Decoded]) -> pd.DataFrame:
    places = [place for place, one in enumerate(decoded) if one.is_valid]
    values = np.full((len(decoded), len(PROPERTIES)), np.nan)
    if places:
        values[places] = tabulate_properties([decoded[place].smiles for place in places])[
            list(PROPERTIES)
        ].to_numpy()
    return pd.DataFrame(values, columns=list(PROPERTIES))


def _counts(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> pd.DataFrame:
    # The upper triangle, so that each bond counts once.
    nodes, pairs = graphs.node_mask, graphs.pair_mask.triu(diagonal=1)
    valency = valencies(graphs, vocabulary).clamp_max(MAX_VALENCY)  # [B, n]
    columns = {
        f"atoms_{name}": (graphs.atoms.eq(i) & nodes).sum(dim=1)
        for i, name in enumerate(vocabulary.atoms)
    }
    columns |= {
        f"bonds_{name}": (graphs.bonds.eq(i) & pairs).sum(dim=(1, 2))
        for i, name in enumerate(vocabulary.bonds)
        if name != "none"
    }
    columns |= {
        f"valency_{number}": (valency.eq(number) & nodes).sum(dim=1)
        for number in range(MAX_VALENCY + 1)
    }
    return pd.DataFrame(
        {name: values.to(torch.int64).cpu().numpy() for name, values in columns.items()}
    )
