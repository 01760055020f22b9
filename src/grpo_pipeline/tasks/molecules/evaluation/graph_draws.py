"""Draw graphs for held-out prompts by batches, for validation, audit, evaluation and showcase."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.types import Rewards
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories, graphs_at
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.graphs.decoding import Decoded
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData


@dataclass(frozen=True)
class SampledGraphs:
    """P x G graphs, row n = p * G + g, and their rewards.

    Attributes:
        graphs: the N graphs.
        molecules: P groups of G decoded graphs.
        rewards: named components and their weighted sum, [P, G].
    """

    graphs: MoleculeGraphs
    molecules: Sequence[Sequence[Decoded]]
    rewards: Rewards


def choose_prompts(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Draw ``count`` of the rows by the seed, sorted; all rows if there are fewer."""
    return np.sort(numpy_generator(seed, Stream.EVALUATION_ROWS).permutation(rows)[:count])


def prompt_batches(
    task: GraphTask, data: MoleculeData, rows: np.ndarray, group_size: int
) -> Iterator[MoleculeBatch]:
    """Yield the rows in batches of at most ``sampling.graphs_at_once`` graphs, but at least one prompt."""
    size = max(1, task.sampling.graphs_at_once // group_size)
    for start in range(0, len(rows), size):
        yield task.make_batch(data, rows[start : start + size])


def draw_graphs(
    task: GraphTask,
    policy: GraphPolicy,
    batch: MoleculeBatch,
    group_size: int,
    *,
    seed: int,
    number: int,
    stream: Stream,
) -> SampledGraphs:
    """Draw G graphs for each prompt of a batch, and score them as in training; ``seed`` and ``number`` fix the noise."""
    generator = step_generator(seed, number, stream=stream, device=task.device)
    context, temperature = task.encode(policy, batch), 1.0
    rollouts = task.sample(
        policy, context, group_size, temperature=temperature, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, rollouts, batch)
    return SampledGraphs(
        graphs_at(cast(Trajectories, rollouts), 0),
        outcomes.molecules,
        combine_rewards(*task.reward(batch, rollouts, outcomes)),
    )
