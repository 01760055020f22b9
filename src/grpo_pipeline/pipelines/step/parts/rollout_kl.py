"""Stay near the policy that sampled: its KL as a term of the loss."""

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.kl import rollout_kl_loss
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.denominators import kl_denominator
from grpo_pipeline.pipelines.step.experience import Experience


def rollout_kl_term(
    algorithm: AlgorithmParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the KL to the policy that sampled."""
    params, rollouts = algorithm.losses.policy, experience.rollouts
    assert params is not None
    loss = rollout_kl_loss(
        scores.logprobs,
        rollouts.logprobs,
        rollouts.is_valid,
        reduction=params.reduction,
        denominator=kl_denominator(params, experience, "rollout_kl"),
    )
    return {"kl_rollout": loss}
