"""Score held-out examples: every rule for points goes through the same decoder, one row per biopsy core and rule.

Rules share the random numbers of a seed, so that two arms are compared on the same uniform and oracle points. The summary
(``prob``) always comes from one set of k points; rewards and hit rates are averages over all sampled sets.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k, log_policy
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    region_cells,
    shown_outlines,
)
from grpo_pipeline.tasks.attention.data.cases import picture_names
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.params import (
    FRAME_COLUMN,
    MODEL_SPACING_COLUMNS,
    AggregateParams,
    Classes,
)
from grpo_pipeline.tasks.attention.metrics import fact_columns, rule_columns
from grpo_pipeline.tasks.attention.model import segmentation
from grpo_pipeline.tasks.attention.model.baselines import (
    CONSTANT,
    HEATMAP,
    ORACLE,
    RULES,
    blob_map,
    highest_points,
    label_values,
    lesion_coverage,
    lesion_distances,
    lesion_share,
    mean_distance,
    nearest_cells,
    oracle_logits,
    point_coordinates,
    points_used,
    region_centroids,
)
from grpo_pipeline.tasks.attention.model.class_scores import class_probs
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.point_sets import draw_sets, likeliest_sets
from grpo_pipeline.tasks.attention.params import ModelParams, SupervisedParams
from grpo_pipeline.tasks.base import Task


class PointTask(Task, Protocol):
    """A task whose samples are points on a grid of cells: what scoring them asks for beside the protocol of every task."""

    @property
    def model(self) -> ModelParams:
        """Parameters of the model; ``points`` and ``stop`` say how many points a set has."""
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

    def look(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        group_size: int,
        *,
        temperature: float,
        generator: Generator | None,
    ) -> Rollouts:
        """Draw sets of points in several looks; without a generator the likelier way is taken at each decision."""
        ...

    @property
    def classes(self) -> Classes | None:
        """Classes that the class decoder tells apart; None for a label."""
        ...


BATCH_SIZE = 64
FIXED_TARGET = (0.5, 0.5)


@torch.no_grad()
def evaluate(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Return one row per core, or frame of a core, and rule (columns: docs/architecture.md, prediction rows).

    Where none of the cores has a lesion outline there is no rule ``oracle``; ``constant`` asks for one among the
    training cores.

    Args:
        task: the task.
        policy: the arm's model.
        data: the data set.
        rows: row numbers to evaluate, int64 [n].
        seed: of the sampled points.
        n_samples: number of sampled sets per core for the sampled rules.
    """
    frames = []
    earlier: EarlierPoints | None = None
    rows, cores = turn_about(data, rows), data.examples.table["core_id"].astype("category")
    outlined = outlined_share(data, task.rows(data, "train"), task.supervised)
    frequency = lesion_frequency(data, task.rows(data, "train"), task.grid)
    absent = {
        *([] if knows_lesions(data, rows) else [ORACLE]),
        *([] if frequency.any() else [CONSTANT]),
    }
    rules = [rule for rule in RULES if rule not in absent] + [HEATMAP] * task.segments
    for batch, context, lesion in evaluation_batches(task, policy, data, rows):
        generator = step_generator(
            seed, int(batch.rows[0]), stream=Stream.EVALUATION, device=task.device
        )
        chosen = choose_points(
            task, policy, context, lesion, n_samples=n_samples, generator=generator
        )
        codes = cores.cat.codes.to_numpy(np.int64)[batch.rows.cpu().numpy()]
        chosen["shuffled"], earlier = points_of_others(chosen["policy"][:, :1], codes, earlier)
        k, cells = task.model.points, context.cells
        if task.segments:
            chosen[HEATMAP] = heatmap_points(task, policy, context, batch)
        chosen["blobs"] = highest_points(blob_map(context.images, task.grid), cells, k)
        chosen[CONSTANT] = highest_points(frequency.to(cells.device).expand(cells.shape), cells, k)
        distances = lesion_distances(data.examples, batch.rows.cpu().numpy(), task.grid)
        for rule in rules:
            frame = _rows(task, policy, data, batch, context, lesion, rule, chosen[rule])
            if task.segments:
                frame = frame.assign(**_masks(task, policy, data, batch, context, chosen[rule]))
            distance = mean_distance(chosen[rule], distances)
            frames.append(frame.assign(lesion_distance_mm=distance, outlined_share=outlined))
    told = pd.concat(frames, ignore_index=True).assign(
        **rule_columns(data.examples.table, task.aggregate)
    )
    keys = [name for name in ("rule", "core_id", FRAME_COLUMN) if name in told]
    return told.sort_values(keys, ignore_index=True)


EarlierPoints = tuple[Tensor, np.ndarray]


def turn_about(data: AttentionData, rows: np.ndarray) -> np.ndarray:
    """Return the rows in an order in which cores take turns: the first frame of each, then the second ones, and so on.

    Neighbours are different cores then, wherever more than one has frames left. Without frames the order stays.
    """
    table = data.examples.table.iloc[rows]
    if FRAME_COLUMN not in table:
        return rows
    turn = table.groupby("core_id").cumcount().to_numpy()
    return rows[np.argsort(turn, kind="stable")]


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


@torch.no_grad()
def validate(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> dict[str, float]:
    """Return the mean reward, its gain over uniform points and the hit rate, on held-out cores; with stops the points used.

    Where the task draws masks, the Dice coefficient of the policy's, too; it reads the outlines and decides nothing.
    """
    totals: dict[str, list[np.ndarray]] = {
        "reward/mean": [],
        "reward/gain_over_uniform": [],
        "lesion_hit": [],
        "uniform_hit": [],
    }
    if task.model.stop is not None:
        totals["points_used"] = []
    if task.segments:
        totals["dice"] = []
    for batch, context, lesion in evaluation_batches(task, policy, data, rows):
        rewards, hits = {}, {}
        for proposal in ("policy", "uniform"):
            generator = step_generator(
                seed, int(batch.rows[0]), stream=Stream.VALIDATION, device=task.device
            )
            rollouts = task.sample(
                policy, context, n_samples, temperature=1.0, proposal=proposal, generator=generator
            )
            outcomes = task.decode(policy, context, rollouts, batch)
            rewards[proposal] = (
                _weigh(*task.reward(task.replicate(batch, n_samples), rollouts, outcomes))
                .mean(1)
                .cpu()
                .numpy()
            )
            hits[proposal] = lesion_share(rollouts.actions, lesion)
            if proposal == "policy" and outcomes.segmentation_logits is not None:
                masks = segmentation.resize_masks(
                    outcomes.segmentation_logits, data.examples.image_size
                )
                outlines = data.examples.lesion[batch.rows.cpu().numpy()]
                outline = torch.as_tensor(np.ascontiguousarray(outlines), device=masks.device)
                dice, _ = segmentation.overlap(masks, outline)
                totals["dice"].append(dice.mean(1).cpu().numpy())
            if proposal == "policy" and task.model.stop is not None:
                totals["points_used"].append(points_used(rollouts.actions, lesion.shape[1]))
        totals["reward/mean"].append(rewards["policy"])
        totals["reward/gain_over_uniform"].append(rewards["policy"] - rewards["uniform"])
        totals["lesion_hit"].append(hits["policy"])
        totals["uniform_hit"].append(hits["uniform"])
    values = {name: np.concatenate(parts) for name, parts in totals.items()}
    return {name: float(np.nanmean(v)) for name, v in values.items() if np.isfinite(v).any()}


@torch.no_grad()
def showcase(
    task: PointTask, policy: AttentionModel, data: AttentionData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Return arrays for the image sheet: masks, heatmap of the policy's points, attention map, both kinds of points.

    ``contribution`` [m, k] is what each point of the policy adds to the reward: that of its set minus that of the set without
    it; NaN where no point was placed. Where a loss or a reward reads the prompted mask there is ``prompted_mask`` [m, 4h, 4w],
    its probabilities. With ``point_labels: both`` there are ``labels_trained`` [m, k]: 1 foreground, 0
    background.
    """
    batch = task.make_batch(data, rows)
    context = task.encode(policy, batch)
    points = {}
    for proposal in ("policy", "uniform"):
        generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
        points[proposal] = task.sample(
            policy, context, 1, temperature=1.0, proposal=proposal, generator=generator
        )
    outcomes = task.decode(policy, context, points["policy"], batch)
    attention = log_policy(policy.propose(context)[0].places(), context.cells).exp()
    placed = point_coordinates(points["policy"], task.grid)[:, 0]  # [m, k, 2]
    k, device = placed.shape[1], placed.device
    kept = torch.cat([torch.ones(1, k, device=device), 1 - torch.eye(k, device=device)]).bool()
    earned = task.subset_rewards(
        policy, context, points["policy"], task.replicate(batch, 1), kept=kept
    )[:, 0]  # [m, 1 + k]: the whole set, then without each of its points
    contribution = (earned[:, :1] - earned[:, 1:]).masked_fill(placed[..., 0].isnan(), torch.nan)
    examples = data.examples
    labels = label_values(points["policy"], task.grid**2)[:, 0].cpu().numpy()
    drawn = outcomes.segmentation_logits
    return {
        **({} if drawn is None else {"prompted_mask": drawn[:, 0].sigmoid().cpu().numpy()}),
        **({"labels_trained": labels} if task.model.point_labels == "both" else {}),
        "core_id": picture_names(examples.table).to_numpy(str)[rows],
        "label": examples.table["label"].to_numpy()[rows],
        "prob": outcomes.class_logits[:, 0].sigmoid().cpu().numpy(),
        "image": np.asarray(examples.images[rows]),
        "region": np.asarray(examples.region[rows]),
        "bag": np.asarray(examples.bag[rows]),
        "lesion": np.asarray(examples.lesion[rows]),
        "heatmap": outcomes.mask_logits[:, 0].sigmoid().cpu().numpy(),
        "attention": attention.reshape(-1, task.grid, task.grid).cpu().numpy(),
        "points_untrained": point_coordinates(points["uniform"], task.grid)[:, 0].cpu().numpy(),
        "points_trained": placed.cpu().numpy(),
        "contribution": contribution.double().cpu().numpy(),
    }


FRAME_SIZE = 128
"""Largest side of the images of an animation, in pixels."""


@torch.no_grad()
def training_frame(
    task: PointTask, policy: AttentionModel, data: AttentionData, rows: np.ndarray, *, seed: int
) -> dict[str, Tensor]:
    """Return one frame of an animation of training: what the policy makes of these cores now.

    The points of all frames are drawn with the same random numbers, so that what moves is the policy.

    Returns:
        ``attention`` [m, h, w], probability of each cell as the first point; ``points`` [m, k, 2], (x, y) in [0, 1], NaN where
        none was placed; with ``point_labels: both`` their ``point_labels`` [m, k]; ``prob`` [m], of cancer; and what stays:
        ``image`` uint8 [m, s, s], ``region`` and ``lesion`` bool [m, s, s], s at most FRAME_SIZE, and ``label`` [m].
    """
    batch = task.make_batch(data, rows)
    context = task.encode(policy, batch)
    generator = step_generator(seed, stream=Stream.FRAMES, device=task.device)
    points = task.sample(
        policy, context, 1, temperature=1.0, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, points, batch)
    attention = log_policy(policy.propose(context)[0].places(), context.cells).exp()
    examples = data.examples
    small = min(FRAME_SIZE, examples.image_size)
    pictures, region, lesion = (
        adaptive_avg_pool2d(torch.from_numpy(np.array(masks[rows])).float(), small)
        for masks in (examples.images, examples.region, examples.lesion)
    )
    shown = {
        "attention": attention.reshape(-1, task.grid, task.grid),
        "points": point_coordinates(points, task.grid)[:, 0],
        "prob": outcomes.class_logits[:, 0].sigmoid(),
        "image": pictures.round().to(torch.uint8),
        "region": region >= 0.5,
        "lesion": lesion >= 0.5,
        "label": torch.from_numpy(examples.table["label"].to_numpy(np.int64)[rows]),
    }
    if task.model.point_labels == "both":
        shown["point_labels"] = label_values(points, task.grid**2)[:, 0]
    return {name: values.cpu() for name, values in shown.items()}


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


def outlined_share(
    data: AttentionData, rows: np.ndarray, supervised: SupervisedParams | None = None
) -> float:
    """Return the share of these cores whose lesion outline a loss learns from (``learned_outlines``). NaN without a core."""
    return float(learned_outlines(data.examples, rows, supervised).mean()) if len(rows) else np.nan


def learned_outlines(
    examples: Examples, rows: np.ndarray, supervised: SupervisedParams | None = None
) -> np.ndarray:
    """Return whether a loss learns the lesion outline of each core, bool [n]: it is shown (``mask_share``), or it is their bag.

    A core without a lesion outline cannot be one of them.
    """
    shown = np.zeros(len(rows), dtype=bool)
    if supervised is not None and supervised.mask_share is not None:
        shown = shown_outlines(examples, rows, supervised.mask_share, supervised.mask_seed)
    learned = [
        bool(examples.lesion[row].any())
        and (is_shown or np.array_equal(examples.lesion[row], examples.bag[row]))
        for row, is_shown in zip(rows, shown, strict=True)
    ]
    return np.array(learned, dtype=bool)


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
    n_samples: int,
    generator: Generator,
) -> dict[str, Tensor]:
    """Return the cells [P, E, k] that each rule chooses, V where it stops; the order of the draws is part of the seed's meaning.

    Only ``policy``, ``greedy`` and ``shuffled`` stop, and only ``policy`` and ``greedy`` look more than once: the other rules
    place k points.
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
    if task.model.looks > 1:
        sampled, greedy = (
            task.look(policy, context, n, temperature=1.0, generator=random).actions
            for n, random in ((n_samples, generator), (1, None))
        )
    else:
        sampled = draw_sets(
            task.model, logits, cells, n_samples, temperature=1.0, generator=generator
        ).actions
        greedy = likeliest_sets(task.model, logits, cells)
    return {
        "policy": sampled,
        "greedy": greedy,
        "uniform": uniform,
        "centre": nearest_cells(region_centroids(cells, task.grid), cells, task.grid, k),
        "fixed": nearest_cells(middle, cells, task.grid, k),
        "none": torch.empty(len(cells), 1, 0, dtype=torch.int64, device=cells.device),
        "oracle": oracle,
    }


def _rows(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    batch: AttentionBatch,
    context: AttentionContext,
    lesion: Tensor,
    rule: str,
    actions: Tensor,
) -> pd.DataFrame:
    rollouts = as_rollouts(actions)
    outcomes = task.decode(policy, context, rollouts, batch)
    grouped = task.replicate(batch, actions.shape[1])
    parts, weights = task.reward(grouped, rollouts, outcomes)
    probs = outcomes.class_logits.sigmoid()
    # The first set's heatmap, the mean of each cell's pixels: [P, 4h, 4w] -> [P, V].
    heatmap = adaptive_avg_pool2d(outcomes.mask_logits[:, 0].sigmoid(), task.grid).flatten(1)
    table = data.examples.table.iloc[batch.rows.cpu().numpy()]
    frame = table[fact_columns(table)].reset_index(drop=True)
    if task.classes is not None and outcomes.class_scores is not None:
        frame = frame.assign(**class_probs(outcomes.class_scores[:, 0], task.classes))
    return frame.assign(
        rule=rule,
        prob=probs[:, 0].cpu().numpy(),
        heatmap_prob=outcomes.bag_probs[:, 0].cpu().numpy(),
        heatmap_top=segmentation.highest_cells(heatmap, context.cells).cpu().numpy(),
        pointing_hit=segmentation.pointing_hit(heatmap, context.cells, lesion),
        prob_std=probs.std(1, correction=0).cpu().numpy(),
        reward=_weigh(parts, weights).mean(1).cpu().numpy(),
        reward_class=parts["class"].mean(1).cpu().numpy(),
        reward_heatmap=parts["heatmap"].mean(1).cpu().numpy(),
        lesion_hit=lesion_share(actions, lesion) if actions.shape[2] else np.nan,
        lesion_coverage=lesion_coverage(lesion, context.cells),
        points_used=points_used(actions, lesion.shape[1]),
    )


def heatmap_points(
    task: PointTask, policy: AttentionModel, context: AttentionContext, batch: AttentionBatch
) -> Tensor:
    """Return the k highest cells of the heatmap that is drawn without any point, int64 [P, 1, k]: where no policy is asked."""
    nothing = torch.empty(len(context.cells), 1, 0, dtype=torch.int64, device=context.cells.device)
    outcomes = task.decode(policy, context, as_rollouts(nothing), batch)
    heatmap = adaptive_avg_pool2d(outcomes.mask_logits[:, 0], task.grid).flatten(1)
    return highest_points(heatmap, context.cells, task.model.points)


# Dice that a click count asks for: NoC@0.8 and NoC@0.9 of interactive segmentation.
QUALITIES = (0.8, 0.9)


def _masks(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    batch: AttentionBatch,
    context: AttentionContext,
    actions: Tensor,
) -> dict[str, np.ndarray]:
    """Return how well the prompted masks of a rule meet the outlines, one number per core; NaN for a core without an outline.

    Dice and intersection over union are means over all E sets; the distance of the edges and the clicks are those of the first
    set, whose points are taken in their order.
    """
    examples, rows = data.examples, batch.rows.cpu().numpy()
    outlines = np.ascontiguousarray(examples.lesion[rows])
    outline = torch.as_tensor(outlines, device=actions.device)

    def drawn(cells: Tensor) -> Tensor:
        logits = task.decode(policy, context, as_rollouts(cells), batch).segmentation_logits
        assert logits is not None  # the task segments
        return segmentation.resize_masks(logits, examples.image_size)  # bool [P, E, S, S]

    masks = drawn(actions)
    dice, union = segmentation.overlap(masks, outline)
    first, units = masks[:, 0].cpu().numpy(), np.full((len(rows), 2), np.nan)
    if set(MODEL_SPACING_COLUMNS) <= set(examples.table.columns):
        units = examples.table[list(MODEL_SPACING_COLUMNS)].to_numpy(np.float64)[rows]
    pairs = [(mask, truth) for mask, truth in zip(first, outlines, strict=True)]
    pixels = [segmentation.hausdorff95(*pair) for pair in pairs]
    millimetres = [
        segmentation.hausdorff95(*pair, (unit[0], unit[1])) if np.isfinite(unit).all() else np.nan
        for pair, unit in zip(pairs, units, strict=True)
    ]
    found = {
        "dice": dice.mean(1).cpu().numpy(),
        "iou": union.mean(1).cpu().numpy(),
        "hausdorff95_px": np.array(pixels),
        "hausdorff95_mm": np.array(millimetres),
    }
    k = actions.shape[2]
    one_by_one = [segmentation.overlap(drawn(actions[:, :1, :n]), outline)[0] for n in range(1, k)]
    if k:
        in_order = torch.cat([*one_by_one, dice[:, :1]], dim=1)  # [P, k], after 1 .. k points
    for quality in QUALITIES:
        name = f"clicks_to_{round(100 * quality)}"
        clicks = segmentation.clicks_to(in_order, quality).cpu().numpy() if k else np.nan
        found[name] = np.broadcast_to(clicks, len(rows))
    return found


def _weigh(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted reward, float [P, E]."""
    first, *others = (weight * parts[name] for name, weight in weights.items())
    return sum(others, start=first)


def as_rollouts(actions: Tensor) -> Rollouts:
    """Return chosen cells [P, E, k] as samples, without probabilities."""
    return Rollouts(
        actions=actions,
        logprobs=torch.zeros(actions.shape, device=actions.device),
        is_valid=torch.ones_like(actions, dtype=torch.bool),
    )
