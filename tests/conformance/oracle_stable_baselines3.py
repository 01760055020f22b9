"""Stable-Baselines3's own code on our cases: its rollout buffer, given float64 arrays, and its explained variance."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from cases import GaeCase
from gymnasium import spaces
from outcomes import Outcome
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import explained_variance


def gae(case: GaeCase) -> Outcome:
    """Return advantages and value targets, stacked; the buffer has time first, and marks where an episode starts."""
    batch, steps = case.rewards.shape
    box = spaces.Box(-1.0, 1.0, (1,))
    buffer = RolloutBuffer(steps, box, box, "cpu", gae_lambda=case.gae_lambda, gamma=case.gamma, n_envs=batch)
    buffer.rewards, buffer.values = case.rewards.T.numpy(), case.values[:, :-1].T.numpy()
    buffer.advantages = np.zeros((steps, batch))
    buffer.episode_starts = np.zeros((steps, batch))
    buffer.episode_starts[1:] = case.dones[:, :-1].T.numpy()
    buffer.compute_returns_and_advantage(case.values[:, -1], case.dones[:, -1].numpy())
    return Outcome(torch.stack([torch.from_numpy(np.ascontiguousarray(x.T)) for x in (buffer.advantages, buffer.returns)]))


def variance(case: GaeCase) -> Outcome:
    """Return the explained variance of the values taken as predictions of the rewards."""
    predicted, seen = (x.flatten().numpy() for x in (case.values[:, :-1], case.rewards))
    return Outcome(torch.tensor(explained_variance(predicted, seen), dtype=torch.float64))


ORACLES: Mapping[str, Callable[[Any], Outcome]] = {"gae": gae, "explained variance": variance}
