"""Score held-out examples: every rule for points goes through the same decoder, one row per biopsy core and rule.

Rules share the random numbers of a seed, so that two arms are compared on the same uniform and oracle points. The summary
(``prob``) always comes from one set of k points; rewards and hit rates are averages over all sampled sets.
"""

import logging
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.weighted import auroc
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    outlined_share,
)
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN, MODEL_SPACING_COLUMNS
from grpo_pipeline.tasks.attention.evaluation.frames import fact_columns, rule_columns, turn_about
from grpo_pipeline.tasks.attention.evaluation.point_rules import (
    BATCH_SIZE,
    EarlierPoints,
    PointTask,
    as_rollouts,
    choose_points,
    evaluation_batches,
    heatmap_points,
    knows_lesions,
    lesion_frequency,
    points_of_others,
)
from grpo_pipeline.tasks.attention.model import heatmap_pointing, mask_agreement
from grpo_pipeline.tasks.attention.model.baselines import (
    CONSTANT,
    HEATMAP,
    ORACLE,
    POOLED,
    RULES,
    blob_map,
    highest_points,
    lesion_coverage,
    lesion_share,
    points_used,
)
from grpo_pipeline.tasks.attention.model.class_scores import class_probs
from grpo_pipeline.tasks.attention.model.lesion_distances import lesion_distances, mean_distance
from grpo_pipeline.tasks.attention.model.model import AttentionModel

logger = logging.getLogger(__name__)


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
    """Return one row per core, or frame of a core, and rule (columns: docs/attention/artefacts.md, prediction rows).

    Where none of the cores has a lesion outline there is no rule ``oracle``; ``constant`` asks for one among the
    training cores.

    Args:
        task: the task.
        policy: the arm's model.
        data: the data set.
        rows: row numbers to evaluate, int64 [n].
        seed: of the run: of the sampled points, and of the weights that training began with.
        n_samples: number of sampled sets per core for the sampled rules.
    """
    frames, unreachable = [], 0
    earlier: EarlierPoints | None = None
    rows, cores = turn_about(data, rows), data.examples.table["core_id"].astype("category")
    outlined = outlined_share(data, task.rows(data, "train"), task.supervised.mask_share)
    frequency = lesion_frequency(data, task.rows(data, "train"), task.grid)
    absent = {
        *([] if knows_lesions(data, rows) else [ORACLE]),
        *([] if frequency.any() else [CONSTANT]),
    }
    rules = [rule for rule in RULES if rule not in absent] + [HEATMAP] * task.segments
    # The policy that training began with; what reads its points is what the arm has learned.
    start = task.build_policy(seed)
    batches = evaluation_batches(task, policy, data, rows)
    total = -(-len(rows) // BATCH_SIZE)
    for batch, context, lesion in track(batches, "evaluate attention", total):
        generator = step_generator(
            seed, int(batch.rows[0]), stream=Stream.EVALUATION, device=task.device
        )
        chosen = choose_points(
            task,
            policy,
            context,
            lesion,
            begun=(start, task.encode(start, batch)),
            n_samples=n_samples,
            generator=generator,
        )
        codes = cores.cat.codes.to_numpy(np.int64)[batch.rows.cpu().numpy()]
        chosen[POOLED] = chosen["policy"]
        chosen["shuffled"], earlier = points_of_others(chosen["policy"][:, :1], codes, earlier)
        k, cells = task.model.points, context.cells
        if task.segments:
            chosen[HEATMAP] = heatmap_points(task, policy, context, batch)
        blobs = blob_map(context.images, task.grid, widths=task.model.blob_widths)
        chosen["blobs"] = highest_points(blobs, cells, k)
        chosen[CONSTANT] = highest_points(frequency.to(cells.device).expand(cells.shape), cells, k)
        outlined_rows = np.array(data.examples.lesion[batch.rows.cpu().numpy()]).any((1, 2))
        unreachable += int((outlined_rows & ~lesion.any(1).cpu().numpy()).sum())
        distances = lesion_distances(data.examples, batch.rows.cpu().numpy(), task.grid)
        for rule in rules:
            frame = _rows(task, policy, data, batch, context, lesion, rule, chosen[rule])
            if task.segments:
                frame = frame.assign(**_masks(task, policy, data, batch, context, chosen[rule]))
            distance = mean_distance(chosen[rule], distances)
            frames.append(frame.assign(lesion_distance_mm=distance, outlined_share=outlined))
    if unreachable:
        logger.warning(
            "%d held-out lesions hold the centre of no cell: no point can hit them, and the metrics of hits leave them out; a "
            "smaller attention.model.patch_size or a larger attention.data.image_size reaches them",
            unreachable,
        )
    told = pd.concat(frames, ignore_index=True).assign(
        **rule_columns(data.examples.table, task.aggregate)
    )
    keys = [name for name in ("rule", "core_id", FRAME_COLUMN) if name in told]
    return told.sort_values(keys, ignore_index=True)


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
    """Return reward, its gain over uniform points, hit rate and AUROC, on held-out cores; with stops the points used.

    The AUROC is of the pictures, by the mean probability of their sets, and left out where they are all of one class.
    Where the task draws masks, the Dice coefficient of the policy's, too; it reads the outlines and decides nothing.
    """
    totals: dict[str, list[np.ndarray]] = {
        "reward/mean": [],
        "reward/gain_over_uniform": [],
        "lesion_hit": [],
        "uniform_hit": [],
    }
    if task.model.policy.stop is not None:
        totals["points_used"] = []
    if task.segments:
        totals["dice"] = []
    probs: list[np.ndarray] = []
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
            if proposal == "policy":
                probs.append(outcomes.class_logits.sigmoid().mean(1).double().cpu().numpy())  # [P]
            if proposal == "policy" and outcomes.segmentation_logits is not None:
                masks = mask_agreement.resize_masks(
                    outcomes.segmentation_logits, data.examples.image_size
                )
                outlines = data.examples.lesion[batch.rows.cpu().numpy()]
                outline = torch.as_tensor(np.ascontiguousarray(outlines), device=masks.device)
                dice, _ = mask_agreement.overlap(masks, outline)
                totals["dice"].append(dice.mean(1).cpu().numpy())
            if proposal == "policy" and task.model.policy.stop is not None:
                totals["points_used"].append(points_used(rollouts.actions, lesion.shape[1]))
        totals["reward/mean"].append(rewards["policy"])
        totals["reward/gain_over_uniform"].append(rewards["policy"] - rewards["uniform"])
        totals["lesion_hit"].append(hits["policy"])
        totals["uniform_hit"].append(hits["uniform"])
    values = {name: np.concatenate(parts) for name, parts in totals.items()}
    means = {name: float(np.nanmean(v)) for name, v in values.items() if np.isfinite(v).any()}
    is_positive = data.examples.table["label"].to_numpy()[rows] == 1
    area = float(auroc(np.concatenate(probs), is_positive, np.ones((1, len(rows))))[0])
    return means | ({"auroc": area} if np.isfinite(area) else {})


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
    probs = outcomes.class_logits.sigmoid()  # [P, E]
    read = slice(None) if rule == POOLED else slice(1)  # the sets whose mean is the prediction
    # The first set's heatmap, the mean of each cell's pixels: [P, 4h, 4w] -> [P, V].
    heatmap = adaptive_avg_pool2d(outcomes.mask_logits[:, 0].sigmoid(), task.grid).flatten(1)
    table = data.examples.table.iloc[batch.rows.cpu().numpy()]
    frame = table[fact_columns(table)].reset_index(drop=True)
    if task.classes is not None and outcomes.class_scores is not None:
        of_sets = [
            class_probs(scores, task.classes) for scores in outcomes.class_scores[:, read].unbind(1)
        ]
        frame = frame.assign(
            **{name: np.mean([one[name] for one in of_sets], axis=0) for name in of_sets[0]}
        )
    return frame.assign(
        rule=rule,
        prob=probs[:, read].mean(1).cpu().numpy(),
        heatmap_prob=outcomes.bag_probs[:, 0].cpu().numpy(),
        heatmap_top=heatmap_pointing.highest_cells(heatmap, context.cells).cpu().numpy(),
        pointing_hit=heatmap_pointing.pointing_hit(heatmap, context.cells, lesion),
        prob_std=probs.std(1, correction=0).cpu().numpy(),
        reward=_weigh(parts, weights).mean(1).cpu().numpy(),
        reward_class=parts["class"].mean(1).cpu().numpy(),
        reward_heatmap=parts["heatmap"].mean(1).cpu().numpy(),
        lesion_hit=lesion_share(actions, lesion) if actions.shape[2] else np.nan,
        lesion_coverage=lesion_coverage(lesion, context.cells),
        points_used=points_used(actions, lesion.shape[1]),
    )


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
        return mask_agreement.resize_masks(logits, examples.image_size)  # bool [P, E, S, S]

    masks = drawn(actions)
    dice, union = mask_agreement.overlap(masks, outline)
    first, units = masks[:, 0].cpu().numpy(), np.full((len(rows), 2), np.nan)
    if set(MODEL_SPACING_COLUMNS) <= set(examples.table.columns):
        units = examples.table[list(MODEL_SPACING_COLUMNS)].to_numpy(np.float64)[rows]
    pairs = [(mask, truth) for mask, truth in zip(first, outlines, strict=True)]
    pixels = [mask_agreement.hausdorff95(*pair) for pair in pairs]
    millimetres = [
        mask_agreement.hausdorff95(*pair, (unit[0], unit[1])) if np.isfinite(unit).all() else np.nan
        for pair, unit in zip(pairs, units, strict=True)
    ]
    found = {
        "dice": dice.mean(1).cpu().numpy(),
        "iou": union.mean(1).cpu().numpy(),
        "hausdorff95_px": np.array(pixels),
        "hausdorff95_mm": np.array(millimetres),
    }
    k = actions.shape[2]
    one_by_one = [
        mask_agreement.overlap(drawn(actions[:, :1, :n]), outline)[0] for n in range(1, k)
    ]
    if k:
        in_order = torch.cat([*one_by_one, dice[:, :1]], dim=1)  # [P, k], after 1 .. k points
    for quality in QUALITIES:
        name = f"clicks_to_{round(100 * quality)}"
        clicks = mask_agreement.clicks_to(in_order, quality).cpu().numpy() if k else np.nan
        found[name] = np.broadcast_to(clicks, len(rows))
    return found


def _weigh(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted reward, float [P, E]."""
    first, *others = (weight * parts[name] for name, weight in weights.items())
    return sum(others, start=first)
