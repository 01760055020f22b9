"""Score the held-out split with an arm's model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.training.shown_samples import shown_samples
from grpo_pipeline.pipelines.training.start import data_of_arm
from grpo_pipeline.tasks.base import ShowsRewards, Task

SHOWCASE_CORES = 12


def predict(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
    task: Task,
    data: Any,
    model: ModelWeights,
    split: str = "test",
) -> tuple[pd.DataFrame, pd.DataFrame, Mapping[str, np.ndarray]]:
    """Score the held-out split with the final weights: prediction rows, sampled rollouts, and a few examples to look at."""
    policy = task.build_policy(0)
    policy.load_state_dict(dict(model.tensors))
    rows = task.rows(data, split)
    few = np.sort(numpy_generator(seed, Stream.SHOWCASE_ROWS).permutation(rows)[:SHOWCASE_CORES])
    predictions = task.evaluate(policy, data, rows, seed=seed, n_samples=training.group_size)
    if isinstance(task, ShowsRewards):
        rollouts = shown_samples(
            task, policy, data, few, algorithm=algorithm, group_size=training.group_size, seed=seed
        )
    else:
        shown = data_of_arm(algorithm, task, data)
        rollouts = _sample_table(
            task, policy, shown, rows, algorithm=algorithm, training=training, seed=seed
        )
    return predictions, rollouts, task.showcase(policy, data, few, seed=seed)


@torch.no_grad()
def _sample_table(
    task: Task,
    policy: Any,
    data: Any,
    rows: np.ndarray,
    *,
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
) -> pd.DataFrame:
    frames = []
    for number, start in enumerate(range(0, len(rows), 64)):
        batch = task.make_batch(data, rows[start : start + 64])
        context = task.encode(policy, batch)
        generator = step_generator(
            seed, number, stream=Stream.SAMPLE_TABLE, device=next(policy.parameters()).device
        )
        rollouts = task.sample(
            policy,
            context,
            training.group_size,
            temperature=1.0,
            proposal=algorithm.proposal,
            generator=generator,
        )
        frames.append(task.tabulate(data, batch, rollouts))
    return pd.concat(frames, ignore_index=True)
