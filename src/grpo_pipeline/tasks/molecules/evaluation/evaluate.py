"""Score sampled graphs of the trained and of the initial policy, beside the training molecules.

Policy and start draw with the same noise, so that the effect of training is compared draw by draw.
"""

from functools import partial

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rng import Stream
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.unscored_rewards import unscored_columns
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.evaluation.graph_draws import (
    SampledGraphs,
    choose_prompts,
    draw_graphs,
    prompt_batches,
)
from grpo_pipeline.tasks.molecules.evaluation.graph_table import prompt_names
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.evaluation.metrics import TRAINING
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData


@torch.no_grad()
def evaluate(
    task: GraphTask,
    policy: GraphPolicy,
    data: MoleculeData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Draw and score graphs for held-out prompts: a row per graph and rule (columns: docs/molecules/rewards.md).

    The rules ``policy`` and ``start`` have ``n_samples`` graphs for each of at most ``molecules.sampling.prompts`` prompts, in
    groups as in training. The rule ``training`` holds the molecules of the training split, without prompt and reward.

    Args:
        task: the task; its initial policy is drawn once for all arms.
        policy: the trained policy.
        data: the data set.
        rows: row numbers of the held-out molecules whose sizes are the prompts, int64 [n].
        seed: seed of the choice of prompts and of the noise.
        n_samples: G.
    """
    chosen = choose_prompts(rows, task.sampling.prompts, seed=seed)
    batches = list(prompt_batches(task, data, chosen, n_samples))

    def drawn_by(model: GraphPolicy, rule: str) -> pd.DataFrame:
        draw = partial(
            draw_graphs, task, model, group_size=n_samples, seed=seed, stream=Stream.EVALUATION
        )
        frames = [
            sample_rows(task, batch, draw(batch, number=number))
            for number, batch in enumerate(track(batches, f"evaluate molecules, {rule}"))
        ]
        return pd.concat(frames, ignore_index=True).assign(rule=rule)

    start = task.cache.take(
        data,
        (seed, n_samples, chosen.tobytes()),
        lambda: drawn_by(task.build_policy(seed), "start"),
    )
    frames = [drawn_by(policy, "policy"), start, training_rows(data)]
    return pd.concat(frames, ignore_index=True).sort_values(
        ["rule", "sample_id"], ignore_index=True
    )


def sample_rows(task: GraphTask, batch: MoleculeBatch, sampled: SampledGraphs) -> pd.DataFrame:
    """Build the rows of drawn graphs, n = p*G + g."""
    group_size = len(sampled.molecules[0])
    names = np.repeat(prompt_names(batch.rows.cpu().numpy()), group_size)
    decoded = [molecule for group in sampled.molecules for molecule in group]
    samples = np.tile(np.arange(group_size), len(sampled.molecules))
    earned = {"reward": sampled.rewards.total} | {
        f"reward_{name}": part for name, part in sampled.rewards.components.items()
    }
    asked = np.asarray([[molecule.is_valid] for molecule in decoded])  # [n, 1]: a row is one graph
    own = {
        name: sampled.rewards.components[name].reshape(-1, 1).cpu().numpy()
        for name in task.rewards.own_measures
    }
    return tabulate_molecules(sampled.graphs, decoded, task.vocabulary, task.known).assign(
        sample_id=[f"{name}-{sample:03d}" for name, sample in zip(names, samples, strict=True)],
        prompt_id=names,
        **{name: values.flatten().cpu().numpy() for name, values in earned.items()},
        **unscored_columns(own, asked),
    )


def training_rows(data: MoleculeData) -> pd.DataFrame:
    """Build a row per training molecule, without a reward, because rewards depend on a group."""
    rows = data.training_rows
    names = [f"t{number:06d}" for number in range(len(rows))]
    return rows.assign(sample_id=names, prompt_id="", rule=TRAINING, reward=np.nan)
