"""Show what a policy makes of a few cores, at the end of training or while it goes on: arrays for pictures, tables of points."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData
from grpo_pipeline.tasks.attention.data.core_frames import picture_names
from grpo_pipeline.tasks.attention.evaluation.point_rules import PointTask
from grpo_pipeline.tasks.attention.model.baselines import point_coordinates
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.point_sets import chosen_points
from grpo_pipeline.tasks.attention.model.sam import cell_centres


@torch.no_grad()
def showcase(
    task: PointTask, policy: AttentionModel, data: AttentionData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Return arrays for the image sheet: masks, heatmap of the policy's points, attention map, both kinds of points.

    ``contribution`` [m, k] is what each point of the policy adds to the reward: that of its set minus that of the set without
    it; NaN where no point was placed. Where a loss or a reward reads the prompted mask there is ``prompted_mask`` [m, 4h, 4w],
    its probabilities, and where the class decoder reads a mask ``read_mask`` [m, 4h, 4w].
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
    attention = log_policy(policy.propose(context)[0].cells, context.cells).exp()
    placed = point_coordinates(points["policy"], task.grid)[:, 0]  # [m, k, 2]
    k, device = placed.shape[1], placed.device
    kept = torch.cat([torch.ones(1, k, device=device), 1 - torch.eye(k, device=device)]).bool()
    earned = task.subset_rewards(
        policy, context, points["policy"], task.replicate(batch, 1), kept=kept
    )[:, 0]  # [m, 1 + k]: the whole set, then without each of its points
    contribution = (earned[:, :1] - earned[:, 1:]).masked_fill(placed[..., 0].isnan(), torch.nan)
    examples = data.examples
    drawn = outcomes.segmentation_logits
    sets = chosen_points(points["policy"], task.grid**2)
    read = policy.mask_to_read(
        batch.images, cell_centres(sets.actions, task.grid), sets.is_valid, drawn
    )
    return {
        **({} if drawn is None else {"prompted_mask": drawn[:, 0].sigmoid().cpu().numpy()}),
        **({} if read is None else {"read_mask": read[:, 0].cpu().numpy()}),
        "core_id": picture_names(examples.table).to_numpy(str)[rows],
        "label": examples.table["label"].to_numpy()[rows],
        "prob": outcomes.class_logits[:, 0].sigmoid().cpu().numpy(),
        "image": np.asarray(examples.images[rows]),
        "region": np.asarray(examples.region[rows]),
        "bag": np.asarray(examples.bag[rows]),
        "lesion": np.asarray(examples.lesion[rows]),
        "heatmap": outcomes.mask_logits[:, 0].sigmoid().cpu().numpy(),
        "attention": attention.reshape(-1, task.grid, task.grid).cpu().numpy(),
        "points_uniform": point_coordinates(points["uniform"], task.grid)[:, 0].cpu().numpy(),
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
        none was placed; ``prob`` [m], of cancer; and what stays: ``image`` uint8 [m, s, s], ``region`` and ``lesion`` bool
        [m, s, s], s at most FRAME_SIZE, and ``label`` [m].
    """
    batch = task.make_batch(data, rows)
    context = task.encode(policy, batch)
    generator = step_generator(seed, stream=Stream.FRAMES, device=task.device)
    points = task.sample(
        policy, context, 1, temperature=1.0, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, points, batch)
    attention = log_policy(policy.propose(context)[0].cells, context.cells).exp()
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
    return {name: values.cpu() for name, values in shown.items()}


def tabulate(
    task: PointTask, data: AttentionData, batch: AttentionBatch, rollouts: Rollouts
) -> pd.DataFrame:
    """Return one row per sample: core, label and the points as "(x, y)" in [0, 1]; NaN for a point that was not placed."""
    n_prompts, group_size, k = rollouts.actions.shape
    points = point_coordinates(rollouts, task.grid).flatten(0, 1).cpu().numpy().round(3)
    rows = batch.rows.cpu().numpy().repeat(group_size)
    table = data.examples.table.iloc[rows]
    frame = pd.DataFrame(
        {
            "core_id": picture_names(table).to_numpy(),
            "sample": np.tile(np.arange(group_size), n_prompts),
        }
    )
    frame["label"] = table["label"].to_numpy()
    for point in range(k):
        frame[f"x{point}"], frame[f"y{point}"] = points[:, point, 0], points[:, point, 1]
    return frame
