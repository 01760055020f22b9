"""Samples of the reward audit: points of the untrained policy, trivial ones and those of the lesion, scored alike.

The decoders are part of this reward. As they are built they know nothing, and whatever points they are given earn about the
same; what the reward can tell apart shows after the supervised warm-up of ``attention.reward_audit``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    Outcomes,
)
from grpo_pipeline.tasks.attention.data.core_frames import picture_names
from grpo_pipeline.tasks.attention.evaluation.point_rules import (
    PointTask,
    as_rollouts,
    choose_points,
    evaluation_batches,
    knows_lesions,
)
from grpo_pipeline.tasks.attention.losses.bags import has_bag
from grpo_pipeline.tasks.attention.model.baselines import ORACLE, lesion_share
from grpo_pipeline.tasks.attention.model.lesion_distances import lesion_distances, mean_distance
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.audit_plan import AuditPlan, Role

ROLES: dict[str, Role] = {
    "policy": "start",
    "uniform": "trivial",
    "centre": "trivial",
    "fixed": "trivial",
    "oracle": "ceiling",
}


@dataclass(frozen=True)
class AuditedCores:
    """A batch of cores with what only an audit may see: cells in the lesion [P, V], distances of the cells to it [P, V]."""

    batch: AttentionBatch
    context: AttentionContext
    lesion: Tensor
    distances: Tensor


def audit_plan(rewards: RewardParams) -> AuditPlan:
    """Return the policies (names of the point rules, docs/attention/artefacts.md), the weights of the reward and the metrics.

    ``brier`` and ``heatmap_error`` are of single samples: (prob - label)^2 and |mean heatmap probability in the bag -
    involvement|, the latter NaN where no involvement is known.
    """
    return AuditPlan(
        example="core_id",
        cluster="patient_id",
        policies=ROLES,
        weights=rewards.weights,
        metrics={
            "brier": "lower",
            "lesion_hit": "higher",
            "lesion_distance_mm": "lower",
            "heatmap_error": "lower",
        },
    )


@torch.no_grad()
def audit(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Return one row per core, policy and set of points; ``AuditPlan`` has the columns.

    Args:
        task: the task.
        policy: the model that training starts from.
        data: the data set.
        rows: row numbers to score, int64 [n].
        seed: of the sampled points.
        n_samples: number of sets per core of the policies that sample; the others place one. Without any lesion outline in these
            rows nobody knows the truth, and there is no policy ``oracle``.
    """
    frames = []
    rules = [rule for rule in ROLES if rule != ORACLE or knows_lesions(data, rows)]
    for batch, context, lesion in evaluation_batches(task, policy, data, rows):
        generator = step_generator(
            seed, int(batch.rows[0]), stream=Stream.AUDIT, device=task.device
        )
        chosen = choose_points(
            task, policy, context, lesion, n_samples=n_samples, generator=generator
        )
        distances = lesion_distances(data.examples, batch.rows.cpu().numpy(), task.grid)
        cores = AuditedCores(batch, context, lesion, distances)
        frames += [
            _score(task, policy, data, cores, chosen[rule]).assign(policy=rule) for rule in rules
        ]
    return pd.concat(frames, ignore_index=True)


def _score(
    task: PointTask,
    policy: AttentionModel,
    data: AttentionData,
    cores: AuditedCores,
    actions: Tensor,
) -> pd.DataFrame:
    """Score the sets actions [P, E, k] of one rule; row p*E + e."""
    n_samples = actions.shape[1]
    rollouts, grouped = as_rollouts(actions), task.replicate(cores.batch, n_samples)
    outcomes = task.decode(policy, cores.context, rollouts, cores.batch)
    rewards = combine_rewards(*task.reward(grouped, rollouts, outcomes))
    table = data.examples.table.iloc[cores.batch.rows.cpu().numpy().repeat(n_samples)].reset_index(
        drop=True
    )
    frame = table[["core_id", "patient_id"]].assign(
        core_id=picture_names(table), sample=np.tile(np.arange(n_samples), len(actions))
    )
    columns = {"reward": rewards.total} | {
        f"reward_{name}": component for name, component in rewards.components.items()
    }
    # The involvement [P, E] of the rows p*E + e, NaN where it is unknown or nothing of the bag is in the region.
    known = torch.tensor(
        table["involvement"].to_numpy(np.float64), device=cores.batch.bag.device
    ).reshape(len(cores.batch.bag), -1)
    columns |= _errors(
        grouped, outcomes, known.masked_fill(~has_bag(cores.batch)[:, None], torch.nan)
    )
    return frame.assign(
        **{name: value.flatten().cpu().numpy() for name, value in columns.items()},
        **_places(cores, actions),
    )


def _errors(
    grouped: AttentionBatch, outcomes: Outcomes, involvement: Tensor
) -> Mapping[str, Tensor]:
    return {
        "brier": (outcomes.class_logits.sigmoid() - grouped.label).square(),
        "heatmap_error": (outcomes.bag_probs - involvement).abs(),
    }


def _places(cores: AuditedCores, actions: Tensor) -> dict[str, np.ndarray]:
    """Return where each set's points are, as sets of one: [P*E]; NaN for a set without points."""
    alone = actions.flatten(0, 1)[:, None]
    lesion, distances = (
        cells.repeat_interleave(actions.shape[1], dim=0)
        for cells in (cores.lesion, cores.distances)
    )
    return {
        "lesion_hit": lesion_share(alone, lesion),
        "lesion_distance_mm": mean_distance(alone, distances),
    }
