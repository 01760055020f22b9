"""Prediction rows of the molecule task: graphs of the trained policy and of the start, and the training molecules beside them.

Policy and start draw with the same noise, so that what training changed is compared draw by draw.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rng import Stream
from grpo_pipeline.tasks.columns import unscored_columns
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.metrics import TRAINING
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.policy import GraphPolicy
from grpo_pipeline.tasks.molecules.sampling import DrawnGraphs, choose_prompts, draw_graphs, prompt_batches
from grpo_pipeline.tasks.molecules.trajectory_table import prompt_names

if TYPE_CHECKING:
    from grpo_pipeline.tasks.molecules.task import MoleculeTask


@torch.no_grad()
def evaluate(
    task: "MoleculeTask", policy: GraphPolicy, data: MoleculeData, rows: np.ndarray, *, seed: int, sets: int
) -> pd.DataFrame:
    """Return one row per graph and rule (columns: docs/molecules_rewards.md).

    Rules: ``policy`` and ``start``, ``sets`` graphs for each of at most ``molecules.sampling.prompts`` prompts, a group as in
    training; ``training``, the molecules of the training split, without a prompt and a reward.

    Args:
        task: the task; its start is the policy that it builds, and draws once for all arms.
        policy: the trained policy.
        data: the data set.
        rows: row numbers of the held-out molecules whose sizes are the prompts, int64 [n].
        seed: of the choice of prompts and of the noise.
        sets: G.
    """
    chosen = choose_prompts(rows, task.sampling.prompts, seed=seed)
    batches = list(prompt_batches(task, data, chosen, sets))

    def drawn_by(model: GraphPolicy, rule: str) -> pd.DataFrame:
        draw = partial(draw_graphs, task, model, group_size=sets, seed=seed, stream=Stream.EVALUATION)
        frames = [sample_rows(task, batch, draw(batch, number=number)) for number, batch in enumerate(batches)]
        return pd.concat(frames, ignore_index=True).assign(rule=rule)

    start = task.kept.take(data, (seed, sets, chosen.tobytes()), lambda: drawn_by(task.build_policy(seed), "start"))
    frames = [drawn_by(policy, "policy"), start, training_rows(data)]
    return pd.concat(frames, ignore_index=True).sort_values(["rule", "sample_id"], ignore_index=True)


def sample_rows(task: "MoleculeTask", batch: MoleculeBatch, drawn: DrawnGraphs) -> pd.DataFrame:
    """Return the rows of drawn graphs, n = p*G + g."""
    group_size = len(drawn.molecules[0])
    names = np.repeat(prompt_names(batch.rows.cpu().numpy()), group_size)
    decoded = [molecule for group in drawn.molecules for molecule in group]
    samples = np.tile(np.arange(group_size), len(drawn.molecules))
    earned = {"reward": drawn.rewards.total} | {f"reward_{name}": part for name, part in drawn.rewards.parts.items()}
    asked = np.asarray([[molecule.is_valid] for molecule in decoded])  # [n, 1]: a row is one graph
    own = {name: drawn.rewards.parts[name].reshape(-1, 1).cpu().numpy() for name in task.rewards.own_measures}
    return tabulate_molecules(drawn.graphs, decoded, task.vocabulary, task.known).assign(
        sample_id=[f"{name}-{sample:03d}" for name, sample in zip(names, samples, strict=True)],
        prompt_id=names,
        **{name: values.flatten().cpu().numpy() for name, values in earned.items()},
        **unscored_columns(own, asked),
    )


def training_rows(data: MoleculeData) -> pd.DataFrame:
    """Return one row per training molecule; what it would earn depends on a group that it has not."""
    rows = data.training_rows
    names = [f"t{number:06d}" for number in range(len(rows))]
    return rows.assign(sample_id=names, prompt_id="", rule=TRAINING, reward=np.nan)
