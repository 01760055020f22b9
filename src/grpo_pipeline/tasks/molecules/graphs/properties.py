"""Tabulate properties of many molecules, such as logP, for rewards and reports."""

from collections.abc import Sequence

import pandas as pd
from rdkit import Chem, rdBase

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.molecules.graphs.accessibility import accessibility_score
from grpo_pipeline.tasks.molecules.graphs.descriptors import drug_likeness, partition_coefficient

PROPERTIES = ("qed", "logp", "sa")

MEASURED_AT_ONCE = 2000  # molecules that one process measures at a time: about three seconds


def tabulate_properties(smiles: Sequence[str]) -> pd.DataFrame:
    """Tabulate ``smiles, qed, logp, sa`` (synthetic accessibility, 1 to 10) of valid molecules, a row each, in order."""
    with rdBase.BlockLogs():
        # One molecule in memory at a time.
        rows = [
            (
                drug_likeness(molecule),
                partition_coefficient(molecule),
                accessibility_score(molecule),
            )
            for molecule in map(Chem.MolFromSmiles, smiles)
        ]
    return pd.DataFrame(rows, columns=list(PROPERTIES), dtype=float).assign(smiles=list(smiles))[
        ["smiles", *PROPERTIES]
    ]


def measure_all(smiles: Sequence[str]) -> pd.DataFrame:
    """Tabulate the properties of many molecules; processes share more than a few thousand."""
    size = MEASURED_AT_ONCE
    chunks = [list(smiles[start : start + size]) for start in range(0, len(smiles), size)]
    if len(chunks) < 3:  # a process imports for two seconds first
        return tabulate_properties(smiles)
    workers = usable_cores()
    found = map_ahead(
        tabulate_properties, chunks, workers=workers, ahead=2 * workers, processes=workers > 1
    )
    return pd.concat(
        track(found, f"measure molecules, {size} at a time", total=len(chunks)), ignore_index=True
    )
