"""Check a task against every promise of ``grpo_pipeline.tasks.base.Task``, and a cheap half of them before a training."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.spec import TaskSpec
from grpo_pipeline.testing import batches, policy, reports, rewards, sampling, scoring
from grpo_pipeline.testing.subject import (
    PROMPTS,
    Check,
    Subject,
    global_streams_kept,
    moved_weights,
    subject_of,
)

# The cheap half: inputs, samples and empty samples; no reward of a sample, no evaluation, no second policy.
READ: tuple[Check, ...] = (
    policy.check_name,
    policy.check_every_parameter_is_in_one_group,
    batches.check_a_batch_has_the_prompts_first,
    batches.check_targets_are_repeated_for_their_own_samples,
    batches.check_an_encoding_is_repeatable,
)
DRAWN: tuple[Check, ...] = (
    sampling.check_samples_have_their_shapes,
    sampling.check_nothing_counts_after_the_end,
    scoring.check_scores_have_their_shapes,
    scoring.check_a_ratio_begins_at_1,
    scoring.check_the_temperature_is_used,
)
NOTHING_DRAWN: tuple[Check, ...] = (
    sampling.check_nothing_is_drawn_where_nothing_is_asked_for,
    rewards.check_nothing_is_paid_for_nothing,
)
QUICK: tuple[Check, ...] = (*READ, *DRAWN, *NOTHING_DRAWN)
# From building to reports: each check relies on values that an earlier check has verified.
CHECKS: tuple[Check, ...] = (
    policy.check_name,
    policy.check_weights_follow_from_the_seed,
    policy.check_every_parameter_is_in_one_group,
    batches.check_splits_are_apart,
    batches.check_a_batch_follows_from_its_arguments,
    batches.check_a_batch_has_the_prompts_first,
    batches.check_targets_are_repeated_for_their_own_samples,
    batches.check_an_encoding_is_repeatable,
    sampling.check_samples_have_their_shapes,
    sampling.check_samples_follow_from_the_generator,
    sampling.check_nothing_counts_after_the_end,
    scoring.check_scores_have_their_shapes,
    scoring.check_a_ratio_begins_at_1,
    scoring.check_the_temperature_is_used,
    scoring.check_scores_belong_to_their_samples,
    scoring.check_a_reference_scores_as_a_policy,
    sampling.check_nothing_is_drawn_where_nothing_is_asked_for,
    rewards.check_nothing_is_paid_for_nothing,
    rewards.check_outcomes_are_repeatable,
    rewards.check_rewards_are_of_each_sample,
    rewards.check_micro_batches_add_up_to_the_supervised_loss,
    rewards.check_every_component_can_learn,
    rewards.check_prompt_weights,
    rewards.check_parts_of_a_sample_earn_what_the_sample_earns,
    reports.check_tables_have_a_row_per_sample,
    reports.check_validation_is_numbers,
    reports.check_predictions_hold_the_metrics,
    reports.check_audit_rows_fit_their_plan,
    reports.check_pictures_are_arrays_of_examples,
    reports.check_calibration_is_plain,
    policy.check_descriptions_are_plain,
)


def check_task(task: Any, data: Any, *, spec: TaskSpec | None = None) -> None:
    """Check that a task keeps every promise of the protocol on its own data; the first broken promise is raised.

    It takes seconds on a small model. Weights that it builds are moved a little, so that no output is uniform or zero. Global
    random streams are restored. It needs neither Kedro nor MLflow nor pytest, and computes on the task's device.

    Args:
        task: the task, on any device.
        data: its data, with at least a few examples in each of the splits train, val and test.
        spec: spec of the task; None to find it by the task's name or beside its class.

    Raises:
        TaskContractError: a sentence with the method, the rule, the value and the remedy.
    """
    with global_streams_kept(), torch.enable_grad():
        subject = subject_of(task, data, spec=spec or reports.spec_of(task))
        for check in CHECKS:
            check(subject)


def check_quickly(
    task: Any,
    data: Any,
    weights: nn.Module,
    *,
    rows: np.ndarray,
    learns: bool = True,
    has_supervised: bool = True,
) -> None:
    """Check the cheap half of the promises with the caller's policy, whose bits are restored.

    Args:
        task: the task.
        data: its data.
        weights: the policy.
        rows: row numbers of a batch; a few of them are read.
        learns: whether the policy learns from its samples. If not, a task may have none at all, as that of a pretraining.
        has_supervised: whether the supervised loss is part of the objective, and asked for.

    Raises:
        TaskContractError: as ``check_task``.
    """
    with global_streams_kept(), torch.enable_grad(), moved_weights(weights):
        found: Subject = subject_of(task, data, policy=weights, rows=rows[:PROMPTS])
        subject = replace(found, has_supervised=has_supervised)
        for check in READ:
            check(subject)
        drawn = subject.rollouts
        is_empty = isinstance(drawn, Rollouts) and drawn.actions.shape[2:] == (0,)
        for check in NOTHING_DRAWN if is_empty and not learns else (*DRAWN, *NOTHING_DRAWN):
            check(subject)
