"""Returns and advantages over time; the last axis is time, T steps."""

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, *, gamma: float, dones: Tensor | None = None, bootstrap: Tensor | None = None) -> Tensor:
    """Sum future rewards, discounted.

        R_t = r_t + gamma * (1 - done_t) * R_{t+1},   R_T = bootstrap (0 if None)

    Args:
        rewards: [..., T].
        gamma: discount per step, in [0, 1].
        dones: bool [..., T], True where the episode ends with step t, or None.
        bootstrap: [...], value after the last step, or None.

    Returns:
        [..., T].
    """
    goes_on = torch.ones_like(rewards) if dones is None else 1.0 - dones.to(rewards.dtype)
    running = torch.zeros_like(rewards[..., 0]) if bootstrap is None else bootstrap
    returns = []
    for t in reversed(range(rewards.shape[-1])):
        running = rewards[..., t] + gamma * goes_on[..., t] * running
        returns.append(running)
    return torch.stack(returns[::-1], dim=-1)


def generalized_advantages(
    rewards: Tensor, values: Tensor, *, gamma: float, gae_lambda: float, dones: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Estimate advantages by GAE.

        A_t = d_t + gamma * lambda * (1 - done_t) * A_{t+1},   d_t = r_t + gamma * V_{t+1} * (1 - done_t) - V_t

    Source: Schulman et al., arXiv 1506.02438, equations 11-16. The values are detached.

    Args:
        rewards: [..., T].
        values: [..., T + 1]; the last one is the bootstrap value after step T - 1.
        gamma: discount per step, in [0, 1].
        gae_lambda: 0 is one-step TD, 1 is Monte Carlo minus the value.
        dones: bool [..., T], True where the episode ends with step t, or None.

    Returns:
        The advantages [..., T] and the value targets A_t + V_t, [..., T].

    Raises:
        ValueError: if ``values`` does not hold one entry more than ``rewards``.
    """
    if values.shape[-1] != rewards.shape[-1] + 1:
        raise ValueError(f"values must hold T + 1 = {rewards.shape[-1] + 1} steps, got {values.shape[-1]}; append the last value")
    values = values.detach()
    goes_on = torch.ones_like(rewards) if dones is None else 1.0 - dones.to(rewards.dtype)
    deltas = rewards + gamma * values[..., 1:] * goes_on - values[..., :-1]
    advantages = discounted_returns(deltas, gamma=gamma * gae_lambda, dones=dones)
    return advantages, advantages + values[..., :-1]
