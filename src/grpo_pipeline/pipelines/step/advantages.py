"""Compare each sample, or decision, with its own group, or with the predicted value of its prompt."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from grpo_pipeline.core.objective.advantage import AdvantageParams
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient import advantages as advantage_functions
from grpo_pipeline.core.policy_gradient.optimal_baseline import optimal_baseline_advantages
from grpo_pipeline.core.policy_gradient.pass_at_k import pass_at_k_advantages
from grpo_pipeline.core.types import Advantages, Credits, Rewards, Rollouts
from grpo_pipeline.tasks.base import Task


def compute_advantages(
    algorithm: AlgorithmParams,
    task: Task,
    replicated: Any,
    rewards: Rewards,
    values: Tensor | None = None,
    importance: Tensor | None = None,
    rollouts: Rollouts | None = None,
) -> Advantages:
    """Compare each sample, or decision, with its own group, or with the predicted value of its prompt; then weigh the prompts.

    A KL that is paid in the reward is in the total. ``per_reward`` does not read the total: it pays the KL after normalisation.
    Rollouts are read by ``opo`` alone.
    """
    params = algorithm.advantage
    if params.method == "per_reward":
        advantages = compare_components(params, rewards, whiten=True)
        if rewards.kl_penalty is not None:
            # A sample pays its KL if at least one weighted component scored it.
            scored = [
                ~part.isnan() for name, part in rewards.components.items() if rewards.weights[name]
            ]
            is_scored = torch.stack(scored).any(dim=0)  # [P, G]
            advantages = advantage_functions.subtract_penalty(
                advantages, rewards.kl_penalty, is_scored
            )
    elif rewards.credits is not None:
        advantages = compare_decisions(params, rewards.credits)
    elif params.method == "opo":
        assert rollouts is not None
        lengths = rollouts.is_valid.sum(dim=2)  # [P, G]
        advantages = optimal_baseline_advantages(rewards.total, lengths)
    elif params.method == "pass_at_k":
        assert params.k is not None
        advantages = pass_at_k_advantages(rewards.total, k=params.k)
    else:
        advantages = advantage_functions.compute_advantages(
            rewards.total,
            method=params.method,
            std=params.std,
            eps=params.eps,
            values=values if params.baseline == "value" else None,
        )
    if params.clip is not None:
        advantages = advantage_functions.clip_advantages(advantages, largest=params.clip)
    if params.top_k_ratio < 1:
        advantages = advantage_functions.keep_top(
            advantages, rewards.total, ratio=params.top_k_ratio
        )
    # Factors on prompts and on replayed samples come after the normalisation, which would cancel them.
    weights = task.prompt_weights(replicated)
    if weights is not None:
        advantages = advantage_functions.apply_prompt_weights(advantages, weights)
    if importance is None:
        return advantages
    # [P, G], or [P, G, L] of decisions.
    weighed = advantages.values * advantage_functions.along(importance.double(), advantages.values)
    return replace(advantages, values=weighed)


def compare_components(params: AdvantageParams, rewards: Rewards, *, whiten: bool) -> Advantages:
    """Return the weighted sum of what each part of the reward says of the samples, [P, G]."""
    return advantage_functions.per_reward_advantages(
        rewards.components,
        rewards.weights,
        std=params.std,
        eps=params.eps,
        whiten=whiten,
    )


def compare_decisions(params: AdvantageParams, credits: Credits) -> Advantages:
    """Return what each decision has contributed, beside those of its group, [P, G, L]."""
    return advantage_functions.decision_advantages(
        credits,
        method=cast(advantage_functions.Method, params.method),
        std=params.std,
        eps=params.eps,
    )
