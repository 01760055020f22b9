"""Nodes of the molecule task's data pipeline; the chemistry is in ``tasks.molecules``.

RDKit is an extra: what needs it is imported when a node runs, so that the registry opens without it.
"""

from typing import Any

import pandas as pd

from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.data.params import (
    GeneratorParams,
    MoleculeDataParams,
    MoleculeSplitParams,
)
from grpo_pipeline.tasks.shared import require
from grpo_pipeline.tasks.text_lines import TextFile


def generate_molecules(
    generator: GeneratorParams, data: MoleculeDataParams
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the generated file and what is in it; with another ``source`` no file.

    Raises:
        ModuleNotFoundError: if RDKit is not installed; this node runs first.
    """
    require("rdkit", extra="molecules")
    if data.source != "generated":
        return {}, {"source": data.source, "molecules": 0}
    from grpo_pipeline.tasks.molecules.data.generate import enumerate_molecules

    smiles = enumerate_molecules(generator)
    files = {"molecules.smi": "".join(f"{text}\n" for text in smiles).encode()}
    return files, {
        "source": data.source,
        "molecules": len(smiles),
        "params": generator.model_dump(mode="json"),
    }


def check_molecules(
    data: MoleculeDataParams, raw: TextFile, generated: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any], dict[str, Any]]:
    """Check every molecule; see ``tasks.molecules.data.checks.check_molecules``."""
    from grpo_pipeline.tasks.molecules.data import checks

    return checks.check_molecules(raw, generated, data)


def split_molecules(split: MoleculeSplitParams, checked: pd.DataFrame) -> dict[str, list[str]]:
    """Divide the molecules; see ``tasks.molecules.data.examples.split_molecules``."""
    from grpo_pipeline.tasks.molecules.data.examples import split_molecules

    return split_molecules(checked, split)


def measure_molecules(checked: pd.DataFrame) -> pd.DataFrame:
    """Return QED, logP and synthetic accessibility of every molecule."""
    from grpo_pipeline.tasks.molecules.graphs.properties import tabulate_properties

    return tabulate_properties(list(checked["smiles"]))


def build_molecule_examples(
    vocabulary: dict[str, Any],
    checked: pd.DataFrame,
    properties: pd.DataFrame,
    parts: dict[str, list[str]],
) -> MoleculeExamples:
    """Return the model input; see ``tasks.molecules.data.build_examples``."""
    from grpo_pipeline.tasks.molecules.data.build_examples import build_examples

    return build_examples(vocabulary, checked, properties, parts)
