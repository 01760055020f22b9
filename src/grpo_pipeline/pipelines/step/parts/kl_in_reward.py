"""Pay the KL to the reference in the reward."""

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.kl import kl_in_reward
from grpo_pipeline.core.rewards import subtract_kl
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import ReferenceScores, Rewards, Rollouts
from grpo_pipeline.pipelines.step.part import StepPart


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
    params = algorithm.kl_in_reward
    assert params is not None
    estimate = kl_in_reward(
        rollouts.logprobs, reference.logprobs, rollouts.is_valid, estimator=params.estimator
    )  # [P, G, L]
    weight = value_at(params.weight, state.step, state.total_steps)
    return subtract_kl(rewards, estimate, rollouts.is_valid, weight=weight)


PART = StepPart(
    is_in=lambda algorithm: algorithm.kl_in_reward is not None,
    rows={
        "after_reward": (
            ("reward", "rewards", penalise_kl, "algorithm state rewards rollouts reference"),
        ),
    },
)
