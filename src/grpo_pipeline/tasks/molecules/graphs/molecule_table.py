"""Describe generated molecules as rows of a table, for metrics, drawings and reports."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.tasks.molecules.graphs.decoding import Decoded
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.properties import PROPERTIES, tabulate_properties
from grpo_pipeline.tasks.molecules.graphs.stability import stable_atoms, valencies
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary

MAX_VALENCY = 6


def tabulate_molecules(
    graphs: MoleculeGraphs,
    decoded: Sequence[Decoded],
    vocabulary: Vocabulary,
    known: Collection[str],
) -> pd.DataFrame:
    """Tabulate the molecules, a row per graph in order.

    Columns:

    - ``smiles`` (canonical, "" if not valid), ``fragment`` (of the largest part, "" if it does not sanitise), ``cause`` (reason
      if not valid)
    - ``is_valid``, ``sanitises``, ``is_connected``, ``fragment_is_valid`` (0 or 1), ``is_known`` (0 or 1, NaN if not valid)
    - ``n_atoms``, ``stable_atoms`` (their number), ``is_stable`` (all of them), ``qed``, ``logp``, ``sa`` (NaN if not valid)
    - the number of each class: ``atoms_<symbol>``, ``bonds_<kind>``, ``valency_<sum of bond orders>`` (the last includes larger
      sums)

    Args:
        graphs: B graphs.
        decoded: the same graphs, decoded by ``decode``.
        vocabulary: vocabulary of the graphs.
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
