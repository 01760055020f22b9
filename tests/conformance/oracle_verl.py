"""verl's own functions on our cases, rows [B, T] in place of [P, G, L], with what they read of a configuration."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import constants
import numpy as np
import torch
from cases import LossCase, RewardCase
from outcomes import Outcome, with_gradient
from torch import Tensor
from verl.trainer.ppo import core_algos


def loss(case: LossCase, *, function: Callable[..., Any], clip: tuple[float, float]) -> Outcome:
    """Return a policy loss and its gradient with respect to the log-probabilities; the mean is over decisions."""
    mask = case.is_valid.flatten(0, 1).to(case.logprobs.dtype)
    chosen = SimpleNamespace(
        clip_cov_ratio=constants.COV_ALL,
        clip_cov_lb=constants.COV_LOW,
        clip_cov_ub=constants.COV_HIGH,
        kl_cov_ratio=constants.COV_SHARE,
        ppo_kl_coef=constants.COV_WEIGHT,
    )
    config = SimpleNamespace(
        clip_ratio=clip[0], clip_ratio_low=clip[0], clip_ratio_high=clip[1], policy_loss=chosen, global_batch_info={}
    )
    advantages = case.advantages.flatten()[:, None].expand_as(mask)

    def compute(logprobs: Tensor) -> Tensor:
        value, _ = function(case.old_logprobs.flatten(0, 1), logprobs.flatten(0, 1), advantages, mask, "token-mean", config)
        return value

    return with_gradient(compute, case.logprobs)


def advantages(case: RewardCase, *, function: Callable[..., Any], alike: bool = False, scale: float = 1.0) -> Outcome:
    """Return the advantages [P, G] of the first part, which is paid at the first decision.

    Args:
        case: rewards.
        function: of verl.
        alike: every sample has one decision; else the case's lengths.
        scale: of the rewards; whitening divides it away.
    """
    prompts, group = case.parts.shape[:2]
    lengths = torch.ones(prompts * group, dtype=torch.long) if alike else case.lengths.flatten()
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).double()  # [B, T]
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = scale * case.parts[..., 0].flatten()
    found, _ = function(rewards, mask, np.repeat(np.arange(prompts), group), config={"norm_adv_by_std_in_grpo": False})
    return Outcome(found[:, 0].reshape(prompts, group))


CLIP, LOG_CLIP = (constants.CLIP_LOW, constants.CLIP_HIGH), (constants.LOG_CLIP, constants.LOG_CLIP)
ORACLES: Mapping[str, Callable[[Any], Outcome]] = {
    "geo mean": partial(loss, function=core_algos.compute_policy_loss_geo_mean, clip=LOG_CLIP),
    "clip cov": partial(loss, function=core_algos.compute_policy_loss_clip_cov, clip=CLIP),
    "kl cov": partial(loss, function=core_algos.compute_policy_loss_kl_cov, clip=CLIP),
    "opo": partial(advantages, function=core_algos.compute_opo_outcome_advantage),
    "pass at k": partial(advantages, function=core_algos.compute_grpo_passk_outcome_advantage),
    "reinforce plus plus": partial(
        advantages, function=core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage, alike=True, scale=2.0**20
    ),
}
