"""Pay the KL to the reference in the reward."""

from typing import cast

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.policy_gradient.kl import RewardEstimator, kl_in_reward
from grpo_pipeline.core.rewards import subtract_kl
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import ReferenceScores, Rewards, Rollouts


def penalise_kl(
    algorithm: AlgorithmParams,
    state: TrainState,
    rewards: Rewards,
    rollouts: Rollouts,
    reference: ReferenceScores,
) -> Rewards:
    """Lower each sample's reward by its KL to the reference."""
    if reference.logprobs is None:
        return rewards
    estimator = cast(RewardEstimator, algorithm.kl_estimator)
    estimate = kl_in_reward(
        rollouts.logprobs, reference.logprobs, rollouts.is_valid, estimator=estimator
    )  # [P, G, L]
    weight = value_at(algorithm.kl_weight, state.step, state.total_steps)
    return subtract_kl(rewards, estimate, rollouts.is_valid, weight=weight)
