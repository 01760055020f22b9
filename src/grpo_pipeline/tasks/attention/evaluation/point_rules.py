"""Choose the points that the policy's are held against: uniform, central, dark, another core's, an oracle's.

Every rule goes through the same decoders afterwards (``evaluate.py``, ``audit.py``). Rules share the random numbers of a seed.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    region_cells,
)
from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.baselines import (
    START,
    highest_points,
    nearest_cells,
    oracle_logits,
    region_centroids,
)
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.point_sets import draw_sets, likeliest_sets
from grpo_pipeline.tasks.base import Task


class PointTask(Task, Protocol):
    """A task whose samples are points on a grid of cells: what scoring them asks for beside the protocol of every task."""

    @property
    def model(self) -> ModelParams:
        """Parameters of the model; ``points`` and ``policy.stop`` say how many points a set has."""
        ...

    @property
    def grid(self) -> int:
        """Side of the cell grid."""
        ...

    @property
    def aggregate(self) -> AggregateParams:
        """How probabilities of frames become that of their core, and those of cores that of their patient."""
        ...

    @property
    def supervised(self) -> SupervisedParams:
        """Parameters of the supervised loss; ``mask_share`` says whose outlines are shown."""
        ...

    @property
    def segments(self) -> bool:
        """Whether the model draws the lesion at the points."""
        ...

    def build_policy(self, seed: int) -> AttentionModel:
        """Return a model with the weights that training begins with."""
        ...

    @property
    def classes(self) -> Classes | None:
        """Classes that the class decoder tells apart; None for a label."""
        ...


BATCH_SIZE = 64
FIXED_TARGET = (0.5, 0.5)
EarlierPoints = tuple[Tensor, np.ndarray]


def points_of_others(
    points: Tensor, cores: np.ndarray, earlier: EarlierPoints | None
) -> tuple[Tensor, EarlierPoints]:
    """Give every row the points of the last row before it that is of another core; with no other core at all, its own.

    The first rows of all take those of the last row of another core in their batch.

    Args:
        points: of each row, [P, 1, k].
        cores: number of each row's core, int64 [P].
        earlier: what this function returned for the batch before, None for the first one.

    Returns:
        the points [P, 1, k], and for the next batch the last two rows that are of different cores.
    """
    if earlier is not None:
        points = torch.cat([earlier[0].to(points.device), points])
        cores = np.concatenate([earlier[1], cores])
    begins = np.concatenate([[True], cores[1:] != cores[:-1]])  # of a run of rows of one core
    number = np.arange(len(cores))
    source = np.maximum.accumulate(np.where(begins, number, 0)) - 1
    others = np.flatnonzero(cores != cores[0])
    source[source < 0] = others[-1] if len(others) else 0
    if not len(others):
        source = number
    last = np.flatnonzero(cores != cores[-1])[-1:]
    kept = np.concatenate([last, number[-1:]])
    taken = points[torch.as_tensor(source, device=points.device)]
    skipped = 0 if earlier is None else len(earlier[1])
    return taken[skipped:], (points[torch.as_tensor(kept, device=points.device)], cores[kept])


def knows_lesions(data: AttentionData, rows: np.ndarray) -> bool:
    """Say whether any of these cores has a lesion outline: without one, an oracle would be uniform points under another name."""
    return any(
        bool(data.examples.lesion[row].any()) for row in rows
    )  # one image in memory at a time


def lesion_frequency(data: AttentionData, rows: np.ndarray, grid: int) -> Tensor:
    """Return the share of these cores in whose lesion each cell lies, float64 [V]: at its top lie the best constant points."""
    count = torch.zeros(grid * grid, dtype=torch.float64)
    for start in range(0, len(rows), BATCH_SIZE):
        lesion = torch.from_numpy(np.array(data.examples.lesion[rows[start : start + BATCH_SIZE]]))
        count += region_cells(lesion, grid).sum(0)
    return count / max(1, len(rows))


def evaluation_batches(
    task: PointTask, policy: AttentionModel, data: AttentionData, rows: np.ndarray
) -> Iterator[tuple[AttentionBatch, AttentionContext, Tensor]]:
    """Yield the cores in batches: batch, encoding and the cells inside the lesion, bool [P, V]."""
    for start in range(0, len(rows), BATCH_SIZE):
        chunk = rows[start : start + BATCH_SIZE]
        batch = task.make_batch(data, chunk)
        lesion = torch.as_tensor(
            np.ascontiguousarray(data.examples.lesion[chunk]), device=task.device
        )
        yield batch, task.encode(policy, batch), region_cells(lesion, task.grid)


def choose_points(
    task: PointTask,
    policy: AttentionModel,
    context: AttentionContext,
    lesion: Tensor,
    *,
    begun: tuple[AttentionModel, AttentionContext] | None = None,
    n_samples: int,
    generator: Generator,
) -> dict[str, Tensor]:
    """Return the cells [P, E, k] that each rule chooses, V where it stops; the order of the draws is part of the seed's meaning.

    Only ``policy``, ``start``, ``greedy`` and ``shuffled`` stop: the other rules place k points. ``begun`` is the policy that
    training began with, and its own encoding of the images: it draws with the same noise as ``policy``, so that one that has not
    moved chooses the same points. Without it there is no ``start``.
    """
    k, cells = task.model.points, context.cells
    logits, _ = policy.propose(context)
    uniform = gumbel_top_k(
        torch.zeros_like(logits.cells), k, n_samples, generator=generator, is_allowed=cells
    )
    # Inside the lesion, then (or without a lesion) uniformly in the region.
    oracle = gumbel_top_k(
        oracle_logits(lesion, cells), k, n_samples, generator=generator, is_allowed=cells
    )
    middle = torch.tensor(FIXED_TARGET, device=cells.device).expand(len(cells), 2)
    same_noise = torch.Generator(generator.device)
    same_noise.set_state(generator.get_state())
    draw = partial(draw_sets, task.model, group_size=n_samples, temperature=1.0)
    own = {"policy": draw(logits, cells, generator=generator).actions}
    if begun is not None:
        started = begun[0].propose(begun[1])[0]
        own[START] = draw(started, cells, generator=same_noise).actions
    return {
        **own,
        "greedy": likeliest_sets(task.model, logits, cells),
        "uniform": uniform,
        "centre": nearest_cells(region_centroids(cells, task.grid), cells, task.grid, k),
        "fixed": nearest_cells(middle, cells, task.grid, k),
        "none": torch.empty(len(cells), 1, 0, dtype=torch.int64, device=cells.device),
        "oracle": oracle,
    }


def heatmap_points(
    task: PointTask, policy: AttentionModel, context: AttentionContext, batch: AttentionBatch
) -> Tensor:
    """Return the k highest cells of the heatmap that is drawn without any point, int64 [P, 1, k]: where no policy is asked."""
    nothing = torch.empty(len(context.cells), 1, 0, dtype=torch.int64, device=context.cells.device)
    outcomes = task.decode(policy, context, as_rollouts(nothing), batch)
    heatmap = adaptive_avg_pool2d(outcomes.mask_logits[:, 0], task.grid).flatten(1)
    return highest_points(heatmap, context.cells, task.model.points)


def as_rollouts(actions: Tensor) -> Rollouts:
    """Return chosen cells [P, E, k] as samples, without probabilities."""
    return Rollouts(
        actions=actions,
        logprobs=torch.zeros(actions.shape, device=actions.device),
        is_valid=torch.ones_like(actions, dtype=torch.bool),
    )
