"""Tabulate sampled graphs for people."""

import numpy as np
import pandas as pd

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData


def prompt_names(rows: np.ndarray) -> list[str]:
    """Name the prompts: row 12 is p00012."""
    return [f"p{row:05d}" for row in rows]


def tabulate(
    task: GraphTask, data: MoleculeData, batch: MoleculeBatch, rollouts: Rollouts
) -> pd.DataFrame:
    """Tabulate the graphs, row n = p*G + g.

    Columns: ``prompt_id``, ``size``, ``molecule`` (the data's molecule of that size), the properties that the prompt names,
    ``group`` (row number in the data), ``sample`` (g), ``smiles`` ("" if not valid), ``is_valid``, ``cause`` (reason if not
    valid) and ``decisions`` (steps that an update scores). Without a step there is no molecule, and ``is_valid`` is NaN.
    """
    prompts, group_size, decisions = rollouts.actions.shape
    rows = batch.rows.reshape(prompts, -1)[:, 0].cpu().numpy()
    decoded = [molecule for group in task.molecules(rollouts) for molecule in group]
    examples = data.examples.table.iloc[rows.repeat(group_size)].reset_index(drop=True)
    told = {f"wanted_{name}": examples[name] for name in task.prompt.conditions}
    return pd.DataFrame({"prompt_id": np.repeat(prompt_names(rows), group_size)}).assign(
        size=examples["atoms"],
        molecule=examples["smiles"],
        **told,
        group=rows.repeat(group_size),
        sample=np.tile(np.arange(group_size), prompts),
        smiles=[one.smiles for one in decoded] or "",
        is_valid=[float(one.is_valid) for one in decoded] or np.nan,
        cause=[one.cause for one in decoded] or "",
        decisions=decisions,
    )
