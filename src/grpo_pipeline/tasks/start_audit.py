"""Audit the reward of a task that has no audit of its own: the start's samples, and two policies without learning."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grpo_pipeline.core.groups import map_tensors
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import Rewards
from grpo_pipeline.tasks.audit_plan import AuditPlan, Role
from grpo_pipeline.tasks.sample_rewards import batches, measure, sampled_rewards

ROLES: dict[str, Role] = {"start": "start", "constant": "trivial", "other_example": "trivial"}


@torch.no_grad()
def audit_start(
    task: Any, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
) -> pd.DataFrame:
    """Score the start's samples, and two policies without learning, in the columns of ``AuditPlan``.

    ``constant`` gives every example of a batch one sample of the batch's first example; ``other_example`` gives each example
    one sample of the example beside it. Both are as likely in form as the start's own, and know nothing of the example.
    """
    frames, first = [], 0
    for number, batch in enumerate(batches(task, data, rows)):
        generator = step_generator(seed, number, stream=Stream.AUDIT, device=task.device)
        sampled, rewards = sampled_rewards(
            task, policy, batch, n_samples=n_samples, generator=generator
        )
        prompts = len(sampled.actions)
        beside = torch.arange(prompts, device=sampled.actions.device).roll(1)
        others = {"constant": torch.zeros_like(beside), "other_example": beside}
        measured = {"start": rewards}
        for name, taken in others.items():
            measured[name] = measure(
                task, policy, batch, map_tensors(sampled, partial(_first_sample_of, taken))
            )
        for name, found in measured.items():
            frames.append(audit_rows(found, rows[first : first + prompts]).assign(policy=name))
        first += prompts
    return pd.concat(frames, ignore_index=True)


def _first_sample_of(prompts: Tensor, samples: Tensor) -> Tensor:
    return samples[prompts, :1]


def audit_rows(rewards: Rewards, rows: np.ndarray) -> pd.DataFrame:
    """Tabulate the reward and its components, a row per sample; an example is named by its row number."""
    samples = rewards.total.shape[1]
    columns = {"reward": rewards.total} | {
        f"reward_{name}": component for name, component in rewards.components.items()
    }
    return pd.DataFrame(
        {"row": rows.repeat(samples), "sample": np.tile(np.arange(samples), len(rows))}
        | {name: value.flatten().cpu().numpy() for name, value in columns.items()}
    )


def plan_audit(weights: Mapping[str, float]) -> AuditPlan:
    """Plan the policies of ``audit_start``; each example is its own cluster, and the reward has no metrics beside it."""
    return AuditPlan("row", "row", policies=ROLES, weights=weights, metrics={})
