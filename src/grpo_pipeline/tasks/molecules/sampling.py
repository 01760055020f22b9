"""Draw graphs for held-out prompts, batch by batch: what validation, audit, evaluation and showcase share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.types import Rewards
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.decoding import Decoded
from grpo_pipeline.tasks.molecules.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.policy import GraphPolicy
from grpo_pipeline.tasks.molecules.rewards import submit_rewards
from grpo_pipeline.tasks.molecules.trajectories import graphs_at

if TYPE_CHECKING:
    from grpo_pipeline.tasks.molecules.task import MoleculeTask


@dataclass(frozen=True)
class DrawnGraphs:
    """P x G graphs, row n = p * G + g, and what they earned.

    Attributes:
        graphs: N of them.
        molecules: P groups of G decoded graphs.
        rewards: named parts and their weighted sum, [P, G].
    """

    graphs: MoleculeGraphs
    molecules: Sequence[Sequence[Decoded]]
    rewards: Rewards


def choose_prompts(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return ``count`` of the rows, or all where there are fewer, drawn by the seed and sorted."""
    return np.sort(numpy_generator(seed, Stream.EVALUATION_ROWS).permutation(rows)[:count])


def prompt_batches(task: "MoleculeTask", data: MoleculeData, rows: np.ndarray, group_size: int) -> Iterator[MoleculeBatch]:
    """Yield the rows in batches of at most ``sampling.graphs_at_once`` graphs, of one prompt at least."""
    size = max(1, task.sampling.graphs_at_once // group_size)
    for start in range(0, len(rows), size):
        yield task.make_batch(data, rows[start : start + size])


def draw_graphs(
    task: "MoleculeTask", policy: GraphPolicy, batch: MoleculeBatch, group_size: int, *, seed: int, number: int, stream: Stream
) -> DrawnGraphs:
    """Draw G graphs for each prompt of a batch and score them as in training; the same numbers give the same noise."""
    generator = step_generator(seed, number, stream=stream, device=task.device)
    context, temperature = task.encode(policy, batch), task.sampling.temperature
    rollouts = task.sample(policy, context, group_size, temperature=temperature, proposal="policy", generator=generator)
    outcomes = task.decode(policy, context, rollouts, batch)
    return DrawnGraphs(graphs_at(rollouts, 0), outcomes.molecules, combine_rewards(*task.reward(batch, rollouts, outcomes)))


def score_molecules(task: "MoleculeTask", batch: MoleculeBatch, molecules: Sequence[Sequence[Decoded]]) -> Rewards:
    """Return the rewards of groups of given molecules, [P, E]."""
    pending = submit_rewards(task.rewards, task.pool, molecules=molecules, known=task.known, references=batch.targets)
    measured = pending.result()
    return combine_rewards(measured.parts, measured.weights)
