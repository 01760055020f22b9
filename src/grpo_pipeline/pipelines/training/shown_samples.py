"""Show sampled rollouts of held-out examples with the rewards and advantages that training would have given them."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import Advantages, Rewards
from grpo_pipeline.pipelines.step.advantages import compute_advantages
from grpo_pipeline.pipelines.step.parts.credit import credit_samples
from grpo_pipeline.pipelines.step.reward import compute_rewards
from grpo_pipeline.tasks.base import ShowsRewards


@torch.no_grad()
def shown_samples(
    task: ShowsRewards,
    policy: Any,
    data: Any,
    rows: np.ndarray,
    *,
    algorithm: AlgorithmParams,
    group_size: int,
    seed: int,
) -> pd.DataFrame:
    """Return one row per sample: what was sampled, each reward component, the reward and the arm's advantage.

    Drawn from the policy in every arm, also in one that learned from no samples, with the same noise.

    Args:
        task: the task.
        policy: the arm's trained policy.
        data: its data.
        rows: row numbers of the examples, int64 [n], few.
        algorithm: of the arm; says how rewards become advantages.
        group_size: G.
        seed: of the run.
    """
    batch = task.make_batch(data, rows)
    replicated, context = task.replicate(batch, group_size), task.encode(policy, batch)
    generator = step_generator(
        seed, stream=Stream.SHOWN_SAMPLES, device=next(policy.parameters()).device
    )
    sampled = task.sample(
        policy,
        context,
        group_size,
        temperature=task.shown_temperature,
        proposal="policy",
        generator=generator,
    )
    rewards = compute_rewards(
        task, replicated, sampled, task.decode(policy, context, sampled, replicated)
    )
    if algorithm.credits_decisions:
        rewards = credit_samples(algorithm, task, policy, context, sampled, replicated, rewards)
    advantages = compute_advantages(algorithm, task, replicated, rewards, sampled)
    return add_rewards(task.tabulate(data, batch, sampled), rewards, advantages)


def add_rewards(table: pd.DataFrame, rewards: Rewards, advantages: Advantages) -> pd.DataFrame:
    """Return the table of samples with ``reward_<part>``, ``reward``, ``advantage`` and ``group_is_tied``.

    Where decisions or turns are credited, ``credit_<k>`` is what each has contributed; the advantage is the mean over decisions.
    So it is where they are weighed; the padding of a sample then counts with its advantage.
    """
    parts = {
        f"reward_{name}": part.flatten().cpu().numpy() for name, part in rewards.components.items()
    }
    of_samples = advantages.values
    if rewards.credits is not None:
        places = rewards.credits.values.flatten(0, 1).unbind(1)
        parts |= {f"credit_{place}": x.cpu().numpy() for place, x in enumerate(places)}
        of_samples = of_samples.sum(2) / rewards.credits.is_taken.sum(2).clamp(min=1)
    elif of_samples.ndim == 3:
        of_samples = of_samples.mean(2)
    return table.assign(
        **parts,
        reward=rewards.total.flatten().cpu().numpy(),
        advantage=of_samples.flatten().cpu().numpy(),
        group_is_tied=advantages.is_tied.repeat_interleave(rewards.total.shape[1]).cpu().numpy(),
    )
