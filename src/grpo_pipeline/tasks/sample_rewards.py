"""Draw samples for held-out prompts and measure their rewards as training does: the defaults of ``BaseTask``."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import Rewards, Rollouts

BATCH_PROMPTS = 64


@torch.no_grad()
def mean_reward(
    task: Any, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
) -> dict[str, float]:
    """Compute ``reward/mean`` and ``reward/<component>/mean`` of ``n_samples`` samples a row, with the same noise each time."""
    found: dict[str, list[Tensor]] = {}
    for number, batch in enumerate(batches(task, data, rows)):
        generator = step_generator(seed, number, stream=Stream.VALIDATION, device=task.device)
        _, rewards = sampled_rewards(task, policy, batch, n_samples=n_samples, generator=generator)
        for name, values in {
            "reward/mean": rewards.total,
            **{f"reward/{k}/mean": v for k, v in rewards.components.items()},
        }.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
    return {name: float(torch.cat(values).nanmean()) for name, values in found.items()}


def batches(task: Any, data: Any, rows: np.ndarray) -> Iterator[Any]:
    """Yield the rows in batches that fit into memory, without augmentation."""
    for start in range(0, len(rows), BATCH_PROMPTS):
        yield task.make_batch(data, rows[start : start + BATCH_PROMPTS])


def sampled_rewards(
    task: Any, policy: Any, batch: Any, *, n_samples: int, generator: Generator
) -> tuple[Rollouts, Rewards]:
    """Draw ``n_samples`` samples of the policy for each prompt and measure them as training does."""
    context = task.encode(policy, batch)
    sampled = task.sample(
        policy, context, n_samples, temperature=1.0, proposal="policy", generator=generator
    )
    return sampled, measure(task, policy, batch, sampled)


def measure(task: Any, policy: Any, batch: Any, rollouts: Rollouts) -> Rewards:
    """Measure the rewards of these samples as training does."""
    replicated = task.replicate(batch, rollouts.actions.shape[1])
    outcomes = task.decode(policy, task.encode(policy, batch), rollouts, replicated)
    return combine_rewards(*task.reward(replicated, rollouts, outcomes))
