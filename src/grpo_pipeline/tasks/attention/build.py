"""Build the attention task from parameters and examples, and refuse what could not be trained."""

from dataclasses import replace

import numpy as np
import torch

from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.core.training.device import choose_device
from grpo_pipeline.core.training.precision import set_float32_products
from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import (
    AttentionData,
    region_cells,
    shown_outlines,
)
from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics, fit_statistics
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.splits_file import SHOWN
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet
from grpo_pipeline.tasks.attention.losses.heatmap import INVOLVEMENT_CLAMP
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.class_decoder.params import FIELD_CELLS
from grpo_pipeline.tasks.attention.model.encoder.pretrained import adopt_checkpoint
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.section_checks import check_sections
from grpo_pipeline.tasks.attention.task import AttentionTask

CHECKED_AT_ONCE = 64

# Of what a heatmap's losses ask for on average: data of one class do not put its level at infinity.
LEAST_SHARE = 0.01


def build_task(
    model: ModelParams,
    rewards: RewardParams,
    supervised: SupervisedParams,
    examples: Examples,
    execution: ExecutionParams | None = None,
    augmentation: AugmentationParams | None = None,
) -> AttentionTask:
    """Return the task for images of this size; without ``execution`` on the GPU when there is one.

    With a checkpoint, the sizes of the model are those of its file. Clinical values are normalised by the rows whose split
    is train in these examples: where the split changes, build the task anew.

    Raises:
        FileNotFoundError: if the checkpoint is missing.
        ValueError: if the checkpoint cannot be read or does not fit the images, a core has fewer cells in its region than
            points are to be placed, the margin of the boundary reward is narrower than half a cell, points cost a reward that
            no policy can save, clinical prompts are asked for without a column that has known training values, a frozen
            encoder is to see augmented images, a field covers the whole grid wherever a point lies, a prompted mask is to be
            read that nothing teaches, a heatmap that is computed has losses or rewards, or the device is not there.
    """
    check_sections(model, rewards, supervised)
    model = adopt_checkpoint(model, examples.image_size)
    device = choose_device("auto" if execution is None else execution.device)
    if execution is not None:
        set_float32_products(execution.float32_products)
    clinical = _fit_clinical(model, examples)
    task = AttentionTask(
        model,
        rewards,
        supervised,
        examples.image_size,
        device,
        clinical=clinical,
        execution=execution,
        augmentation=augmentation,
        classes=examples.classes,
        heatmap_level=heatmap_level(model, supervised, examples),
    )
    _check_cells(examples, task.grid, model.points)
    # Sides of the default stay: on a small grid one of them covers it, and says once what the image is like.
    fields = () if model.statistics is None else model.statistics.fields
    wide = [side for side in fields if side not in FIELD_CELLS]
    if wide and wide[-1] >= 2 * task.grid - 1:
        raise ValueError(
            f"attention.model.class_decoder.fields must be below {2 * task.grid - 1} on a grid of {task.grid} x {task.grid} "
            f"cells, got {wide[-1]}; such a field is the whole image wherever a point lies: use smaller ones"
        )
    _check_outlines(task, examples)
    if rewards.boundary and rewards.boundary.margin <= 0.5 / task.grid:
        raise ValueError(
            f"attention.reward.boundary.margin must be more than half a cell = {0.5 / task.grid}, got {rewards.boundary.margin}; "
            "no cell's centre is nearer to the edge: use a larger margin, a smaller patch_size, or boundary: null"
        )
    if augmentation is not None and model.is_frozen:
        raise ValueError(
            "attention.augmentation must be null with attention.model.encoder.tuning.kind = frozen, got a value; its "
            "features are stored for the images as they are: use another tuning, or no augmentation"
        )
    return task


def heatmap_level(model: ModelParams, supervised: SupervisedParams, examples: Examples) -> float:
    """Return the log-odds of what the heatmap's losses ask for on average over the training cores; 0 where none asks.

        log m / (1 - m),   m = sum_i w_i m_i / sum_i w_i

    m_i is the mean target of loss i with weight w_i: the clamped involvement (where unknown the label), the label, and in
    outlines the label inside and 0 outside. SAM's mask output has no bias: an untrained heatmap is at 1/2, and the first thing
    that its losses teach is the level. Without a bias they teach it by making the image features of all cells alike
    (docs/decisions/0071). Source: Lin et al. 2017, "Focal loss for dense object detection", section 4.1, where the bias starts
    at the prior of the rare class.
    """
    table = examples.table.iloc[examples.rows("train")]
    label = table["label"].to_numpy(np.float64)
    involvement = table["involvement"].to_numpy(np.float64)
    share = np.where(np.isnan(involvement), label, involvement)
    share = share.clip(INVOLVEMENT_CLAMP, 1 - INVOLVEMENT_CLAMP)
    weights = supervised.weights
    asked = [
        (weights["heatmap"], share.mean()),
        (weights["needle"] + weights["mil"], label.mean()),
        (weights["heatmap_outline"], label.mean() / 2),
    ]
    total = sum(weight for weight, _ in asked)
    if model.heatmap is not None or not total or not len(table):
        return 0.0
    mean = float(sum(weight * target for weight, target in asked)) / total
    mean = min(max(mean, LEAST_SHARE), 1 - LEAST_SHARE)
    return float(np.log(mean / (1 - mean)))


def keep_preprocessing(task: AttentionTask, data: DataParams) -> AttentionTask:
    """Return the task that tells its models how their images were prepared, so that they can be used alone."""
    columns = () if task.clinical is None else task.clinical.columns
    return replace(task, preprocessing=data.for_model(image_size=task.image_size, clinical=columns))


def join_features(examples: Examples, features: FeatureSet) -> AttentionData:
    """Return the data of a run: examples and, with a frozen encoder, their features."""
    return AttentionData(examples=examples, features=features.values)


def _fit_clinical(model: ModelParams, examples: Examples) -> ClinicalStatistics | None:
    if model.clinical is None:
        return None
    if not examples.clinical:
        raise ValueError(
            "attention.data.columns.clinical must name a column for attention.model.clinical, got none; name one and run the "
            "pipeline attention_data again, or set attention.model.clinical: null"
        )
    return fit_statistics(examples.table, examples.clinical)


def _check_outlines(task: AttentionTask, examples: Examples) -> None:
    supervised, path = task.supervised, "attention.supervised_loss.mask_share"
    if supervised.mask_share is None:
        if task.segments:
            raise ValueError(
                f"{path} must be given with attention.reward.dice, got null; say whose outlines are shown, or write dice: null"
            )
        return
    train = examples.rows("train")
    shown = train[shown_outlines(examples, train, supervised.mask_share)]
    # Whatever the weights: baselines learn from shown outlines, too.
    is_wanted = task.segments or supervised.mask_share > 0
    if is_wanted and not any(examples.lesion[row].any() for row in shown):
        raise ValueError(
            f"{path} must show an outline of at least one training core, got {supervised.mask_share:g}, with {len(shown)} cores "
            "of which none has one; name the outlines in attention.data.columns.lesion_mask, show more of them, or set it to null"
        )
    for row in train:
        lesion = examples.lesion[row]
        if lesion.any() and np.array_equal(lesion, examples.bag[row]):
            raise ValueError(
                f"{path} must be null where the outline is the bag mask, got {supervised.mask_share:g}, and the outline of core "
                f"'{examples.table['core_id'].iloc[row]}' as its bag; the losses of the bag are shown all bags: set "
                "attention.data.columns.bag_mask: null"
            )


def _check_cells(examples: Examples, grid: int, points: int) -> None:
    starts = range(0, len(examples.region), CHECKED_AT_ONCE)
    chunks = (np.array(examples.region[start : start + CHECKED_AT_ONCE]) for start in starts)
    counts = np.concatenate(
        [region_cells(torch.as_tensor(chunk), grid).sum(1).numpy() for chunk in chunks]
    )
    short = np.flatnonzero(counts < points)
    if short.size:
        first, *others = examples.table["core_id"].iloc[short[: 1 + SHOWN]]
        more = f" (and {short.size - 1} more such cores, such as {others})" if others else ""
        fewer = "fewer points, " if counts[short].min() else ""
        raise ValueError(
            f"the region of core '{first}' must cover at least attention.model.points = {points} cells of the {grid} x {grid} "
            f"grid, got {counts[short[0]]}{more}; use {fewer}a smaller patch_size, a larger attention.data.image_size or region "
            "mask, or leave such cores out of the manifest"
        )
