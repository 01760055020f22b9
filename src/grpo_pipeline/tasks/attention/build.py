"""Put an attention task together from parameters and examples, refusing what could not be trained on."""

from dataclasses import replace

import numpy as np
import torch

from grpo_pipeline.core.execution import ExecutionParams, check_compiler, choose_device, set_float32_products
from grpo_pipeline.tasks.attention.augment_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import AttentionData, region_cells
from grpo_pipeline.tasks.attention.clinical_values import ClinicalStatistics, fit_statistics
from grpo_pipeline.tasks.attention.data_params import DataParams
from grpo_pipeline.tasks.attention.examples import Examples
from grpo_pipeline.tasks.attention.features import FeatureSet
from grpo_pipeline.tasks.attention.model_params import ModelParams, RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.pretrained import adopt_checkpoint
from grpo_pipeline.tasks.attention.task import AttentionTask

CHECKED_AT_ONCE = 64


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
            encoder is to see augmented images, or the device is not there or has no compiler.
    """
    if rewards.points_weight and model.stop is None:
        raise ValueError(
            f"attention.reward.points_weight must be 0 with attention.model.stop = null, got {rewards.points_weight}; every set "
            "has the same number of points: give stop a min_points"
        )
    model = adopt_checkpoint(model, examples.image_size)
    device = choose_device("auto" if execution is None else execution.device)
    if execution is not None:
        _set_up(execution, device)
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
    )
    _check_cells(examples, task.grid, model.points)
    _check_margin(rewards, task.grid)
    _check_augmentation(augmentation, model)
    return task


def keep_preprocessing(task: AttentionTask, data: DataParams) -> AttentionTask:
    """Return the task that tells its models how their images were prepared, so that they can be used alone."""
    columns = () if task.clinical is None else task.clinical.columns
    return replace(task, preprocessing=data.for_model(image_size=task.image_size, clinical=columns))


def join_features(examples: Examples, features: FeatureSet) -> AttentionData:
    """Return the data of a run: examples and, with a frozen encoder, their features."""
    return AttentionData(examples=examples, features=features.values)


def _check_augmentation(augmentation: AugmentationParams | None, model: ModelParams) -> None:
    if augmentation is not None and model.encoder == "frozen":
        raise ValueError(
            "attention.augmentation must be null with attention.model.encoder = frozen, got a value; its features are stored for "
            "the images as they are: use encoder: train, or no augmentation"
        )


def _check_margin(rewards: RewardParams, grid: int) -> None:
    if rewards.boundary_weight and rewards.boundary_margin <= 0.5 / grid:
        raise ValueError(
            f"attention.reward.boundary_margin must be more than half a cell = {0.5 / grid}, got {rewards.boundary_margin}; "
            "no cell's centre is nearer to the edge: use a larger margin, a smaller patch_size, or boundary_weight: 0"
        )


def _fit_clinical(model: ModelParams, examples: Examples) -> ClinicalStatistics | None:
    if model.clinical is None:
        return None
    if not examples.clinical:
        raise ValueError(
            "attention.data.columns.clinical must name a column for attention.model.clinical, got none; name one and run the "
            "pipeline attention_data again, or set attention.model.clinical: null"
        )
    return fit_statistics(examples.table, examples.clinical)


def _set_up(execution: ExecutionParams, device: torch.device) -> None:
    set_float32_products(execution.float32_products)
    if execution.compile != "none":
        check_compiler(device)


def _check_cells(examples: Examples, grid: int, points: int) -> None:
    starts = range(0, len(examples.region), CHECKED_AT_ONCE)
    chunks = (np.array(examples.region[start : start + CHECKED_AT_ONCE]) for start in starts)
    counts = np.concatenate([region_cells(torch.as_tensor(chunk), grid).sum(1).numpy() for chunk in chunks])
    short = np.flatnonzero(counts < points)
    if short.size:
        row = int(short[0])
        raise ValueError(
            f"the region of core '{examples.table['core_id'].iloc[row]}' must cover at least attention.model.points = {points} "
            f"cells of the {grid} x {grid} grid, got {counts[row]} (and {short.size - 1} more such cores); "
            "use fewer points, a smaller patch_size, or a larger region mask"
        )
